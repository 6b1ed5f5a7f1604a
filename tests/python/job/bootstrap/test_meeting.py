"""How ranks meet: secrets, addresses, ports, versions."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import threading

import pytest
from attacks import Relay, Squatter
from bootstrap_jobs import SECRET, close, free_port, identity, run_ranks

from tfring.job.bootstrap import (
    exchange,
    hosts,
    meeting,
    mesh,
    mpi_exchange,
    records,
    store_exchange,
)
from tfring.job.bootstrap.connect import connect_job
from tfring.job.bootstrap.patience import Patience
from tfring.job.environments import Rendezvous, find_identity
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import bind
from tfring.job.security import munge, sources
from tfring.job.security.errors import SecretError
from tfring.job.security.secret import job_key
from tfring.job.store import TCPStore
from tfring.launch.agents.addresses import open_rendezvous
from tfring.runtime.settings.environment import Settings, read_settings
from tfring.runtime.settings.setting import SettingError


def test_job_on_one_host_needs_no_secret(connect_all, caplog):
    """Its ranks share one that only this user can read, and no other host can connect."""
    with caplog.at_level(logging.WARNING, "tfring"):
        memberships, errors = connect_all(2, Settings(start_timeout=20), public_seed="port 1")
    assert not errors and not caplog.text
    assert memberships[0].key == memberships[1].key


def test_job_over_several_hosts_needs_a_secret(connect_all, caplog):
    _, errors = connect_all(2, Settings(start_timeout=20), public_seed="p", several_hosts=True)
    for rank in (0, 1):
        assert isinstance(errors[rank], SecretError)
        assert "TFRING_SECRET_FILE" in str(errors[rank]) and "tfring run" in str(errors[rank])
    with caplog.at_level(logging.WARNING, "tfring"):
        settings = Settings(start_timeout=20, insecure=True)
        memberships, errors = connect_all(2, settings, public_seed="p", several_hosts=True)
    assert not errors and len(memberships) == 2
    assert "can join the job and run code" in caplog.text


# Jobs over two hosts as other launchers describe them; no host has these addresses.
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "RANK",
    "SLURM_STEP_NODELIST": "192.0.2.1,192.0.2.2",
}
ON_TWO_HOSTS = {
    "TF_CONFIG": {
        "TF_CONFIG": '{"cluster": {"worker": ["192.0.2.1:1", "192.0.2.2:1"]}, '
        '"task": {"type": "worker", "index": RANK}}'
    },
    "a Slurm step": {**STEP, "SLURM_STEP_NUM_NODES": "2"},
    # Without the number of nodes: a rank that is not on the first node knows that there are two.
    "a Slurm step of unknown size": STEP,
    "torchrun": {
        "RANK": "RANK",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": "29500",
    },
}


@pytest.mark.parametrize("launcher", ON_TWO_HOSTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_launcher_over_two_hosts_is_refused_without_a_secret(launcher, rank, monkeypatch):
    """Before this rank listens or connects."""
    monkeypatch.setattr(sources.munge, "available", lambda: False)
    environ = {k: v.replace("RANK", str(rank)) for k, v in ON_TWO_HOSTS[launcher].items()}
    found = find_identity(environ, have_mpi4py=True)
    source = launcher.removesuffix(" of unknown size")
    assert (found.source, found.rank) == (source, rank)
    with pytest.raises(SecretError, match=f"{source}.*several hosts.*TFRING_SECRET_FILE"):
        connect_job(found, Settings(start_timeout=5), environ)


@pytest.mark.parametrize("key,name", [("python", "Python"), ("tensorflow", "TensorFlow")])
def test_versions_are_compared(key, name):
    mine = records.Record.of_this_process(identity(0, 2, 1), read_settings({}))
    other = dataclasses.replace(mine, rank=1, **{key: "0.9"})
    with pytest.raises(BootstrapError, match=f"rank 1 on host {mine.host} has {name} 0.9, rank 0"):
        records.check_versions([mine.to_json(), other.to_json()])
    records.check_versions([mine.to_json(), mine.to_json()])


def test_bind_address_that_is_not_ours():
    settings = Settings(secret=SECRET, start_timeout=5, bind_addr="192.0.2.254")
    with pytest.raises(BootstrapError, match=r"cannot listen at localhost.*TFRING_BIND_ADDR"):
        connect_job(identity(0, 2, free_port()), settings, {})


def test_where_rank_0_listens(monkeypatch):
    """At a real interface if its name resolves to one, else at all: never at 127.0.1.1."""
    names = {"here": "127.0.1.1", "nat": "192.0.2.254"}
    own = [a.address for a in hosts.interface_addresses() if not a.loopback]

    def getaddrinfo(name, *_, **__):
        if name == "nowhere":
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, 1, 6, "", (names.get(name, name), 0))]

    monkeypatch.setattr(hosts.socket, "getaddrinfo", getaddrinfo)
    assert hosts.look_here("here") == hosts.look_here("127.0.1.1") == (True, "")
    assert hosts.look_here("nat") == hosts.look_here("nowhere") == (False, "")
    assert hosts.look_here("localhost") == (True, "127.0.0.1")
    assert [hosts.look_here(address) for address in own] == [(True, address) for address in own]


def test_bind_and_advertised_addresses(connect_all):
    """Listens at all addresses, and advertises a second loopback address."""
    settings = Settings(
        secret=SECRET, start_timeout=20, bind_addr="0.0.0.0", advertise_addr="127.0.0.2"
    )
    memberships, errors = connect_all(2, settings)
    assert not errors
    with socket.socket(fileno=os.dup(memberships[1].data_fds[0])) as sock:
        assert sock.getpeername()[0] == "127.0.0.2"


def test_port_that_somebody_else_has():
    """Rank 0 takes the next port of the sequence, and the others find it there."""
    settings = Settings(secret=SECRET, start_timeout=30)
    with bind("127.0.0.1", 0, 4) as squatter:
        port = squatter.getsockname()[1]
        memberships, errors = run_ranks(
            lambda rank: connect_job(identity(rank, 2, port), settings, {}), range(2)
        )
    assert not errors
    for membership in memberships.values():
        close(membership)
    one, two = (meeting.candidate_ports(job_key(SECRET, job)) for job in "ab")
    assert one != two and all(20000 <= port < 32000 for port in (*one, *two))


def listens_at(membership, peer):
    """The port at which a rank has accepted or reached another."""
    with socket.socket(fileno=os.dup(membership.data_fds[peer])) as sock:
        return {sock.getsockname()[1], sock.getpeername()[1]}


def test_a_range_of_ports(monkeypatch, connect_all):
    """A firewall lets nothing else through."""
    first = meeting.candidate_ports(os.urandom(32))[0]
    allowed = range(first, first + 40)
    monkeypatch.setenv("TFRING_PORT_RANGE", f"{first}-{allowed[-1]}")
    assert all(port in allowed for port in meeting.candidate_ports(b"k" * 32))
    memberships, errors = connect_all(3)
    assert not errors
    for rank, peer in ((0, 1), (0, 2), (1, 2)):
        assert listens_at(memberships[rank], peer) & set(allowed)
    with open_rendezvous(None, None) as sock, bind("", 0, 4) as other:
        assert {one.getsockname()[1] for one in (sock, other)} <= set(allowed)
    with TCPStore("localhost", 0, is_master=True) as store:
        assert store.port in allowed
    taken = bind("127.0.0.1", 0, 4)
    monkeypatch.setenv("TFRING_PORT_RANGE", "{0}-{0}".format(taken.getsockname()[1]))
    with taken, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", 0, 4)
    for wrong in ("20000", "9-1", "0-5", "1-65536", "a-b"):
        with pytest.raises(SettingError, match="has to be the first and the last port of a range"):
            read_settings({"TFRING_PORT_RANGE": wrong})


def test_an_advertised_port(monkeypatch):
    """As behind a container's published ports: the advertised port leads to a different one."""
    inside, place = free_port(), free_port()
    with Relay(("127.0.0.1", inside), lambda _, data: data) as outside:

        def work(rank):
            settings = Settings(secret=SECRET, start_timeout=20)
            if rank == 0:
                advertised = f"127.0.0.1:{outside.address[1]}"
                settings = dataclasses.replace(settings, advertise_addr=advertised)
            return connect_job(identity(rank, 2, place), settings, {})

        monkeypatch.setattr(mesh, "bind", lambda address, _, backlog: rank_0_first(address))
        taken = []

        def rank_0_first(address):
            name = threading.current_thread().name
            port = inside if name == "rank 0" else 0
            taken.append(port)
            return bind(address, port, 16)

        memberships, errors = run_ranks(work, range(2))
    assert not errors and inside in taken
    with socket.socket(fileno=os.dup(memberships[1].data_fds[0])) as sock:
        assert sock.getpeername()[1] == outside.address[1]
    for membership in memberships.values():
        close(membership)
    assert hosts.split_port("node7") == ("node7", None)
    assert hosts.split_port("fd00::1") == ("fd00::1", None)
    assert hosts.split_port("[fd00::1]:9") == ("fd00::1", 9)


def test_a_name_server_that_is_silent(monkeypatch):
    """It delays a rank no longer than the rank waits anyway."""
    asked, over = threading.Event(), threading.Event()

    def getaddrinfo(*_, **__):
        asked.set()
        over.wait(60)
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    far = dataclasses.replace(identity(1, 2, 29500), address="far.example")
    with pytest.raises(BootstrapError, match=r"far\.example"):
        connect_job(far, Settings(secret=SECRET, start_timeout=1), {})
    over.set()
    assert asked.is_set()


def test_job_id_tells_jobs_apart(connect_all):
    each = [Settings(secret=SECRET, start_timeout=1.5, job_id=job) for job in "ab"]
    _, errors = connect_all(2, each=each)
    assert set(errors) == {0, 1}
    memberships, errors = connect_all(2, Settings(secret=SECRET, start_timeout=20, job_id="a"))
    assert not errors and len(memberships) == 2


def test_child_of_a_rank_is_refused_at_once(monkeypatch):
    environ = {"TFRING_SECRET": SECRET}
    monkeypatch.setattr(sources, "_taken", None)
    assert sources.take_secret(environ) == SECRET and not environ  # a child does not inherit it
    assert sources.take_secret(environ) == SECRET  # the next init has it
    with pytest.raises(SecretError, match="has no secret"):
        connect_job(identity(1, 2, free_port()), Settings(start_timeout=20), {})


def test_mpi_that_does_not_load(connect_all, monkeypatch, caplog):
    """The ranks meet over TCP instead if the environment has all that is needed."""

    def fail():
        raise BootstrapError("mpi4py cannot load an MPI library")

    monkeypatch.setattr(mpi_exchange, "load_mpi", fail)
    port = free_port()

    def work(rank):
        over_tcp = identity(rank, 2, port)
        own = dataclasses.replace(over_tcp, rendezvous=Rendezvous.MPI, fallback=over_tcp)
        return connect_job(own, Settings(secret=SECRET, start_timeout=20), {})

    memberships, errors = run_ranks(work, range(2))
    assert not errors and not memberships[0].by_mpi
    assert "meet over TCP instead" in caplog.text
    for membership in memberships.values():
        close(membership)
    alone = dataclasses.replace(identity(0, 2, port), rendezvous=Rendezvous.MPI)
    with pytest.raises(BootstrapError, match="cannot load"):
        connect_job(alone, Settings(secret=SECRET), {})


def test_secret_files(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    with pytest.raises(SecretError, match="cannot be read"):
        sources.read_secret_file(path)
    path.write_text(f"{SECRET}\n")
    path.chmod(0o640)
    with pytest.raises(SecretError, match=r"mode 0640.*chmod 600"):
        sources.read_secret_file(path)
    path.chmod(0o600)
    assert sources.read_secret_file(path) == SECRET
    tmp_path.chmod(0o777)
    with pytest.raises(SecretError, match="everybody can replace it: chmod o-w"):
        sources.read_secret_file(path)
    tmp_path.chmod(0o1777)  # as /tmp: others cannot rename or remove our files
    assert sources.read_secret_file(path) == SECRET
    path.write_text("")
    with pytest.raises(SecretError, match="has 0 bytes"):
        sources.read_secret_file(path)
    with pytest.raises(SecretError, match="no regular file"):
        sources.read_secret_file(tmp_path)
    monkeypatch.setattr(sources.os, "geteuid", lambda: 12345)
    if os.getuid() != 0:  # a file of root is all right
        with pytest.raises(SecretError, match="belongs to another user"):
            sources.read_secret_file(path)


def test_a_pipe_or_a_device_in_the_place_of_the_addresses_stays(tmp_path):
    pipe = tmp_path / "addresses"
    os.mkfifo(pipe)
    with contextlib.ExitStack() as owned, pytest.raises(BootstrapError, match="no regular file"):
        meeting.file_store(pipe, 0, 2, Patience("rank 0", 20), owned)
    assert pipe.is_fifo()  # root could remove /dev/null


def test_secret_of_a_user(tmp_path, monkeypatch):
    """All processes get the same one, also those that look for it at the same time."""
    monkeypatch.setattr(sources, "_RUN", tmp_path / "run")
    monkeypatch.setattr(sources.tempfile, "gettempdir", lambda: str(tmp_path))
    found, errors = run_ranks(lambda _: sources.secret_of_this_user(), range(8))
    assert not errors and len(set(found.values())) == 1 and len(found[0]) == 64
    folder = tmp_path / f"tfring-{os.geteuid()}"
    assert os.listdir(folder) == ["secret"]
    folder.chmod(0o755)
    monkeypatch.setattr(sources.Path, "home", no_home)
    with pytest.raises(SecretError, match=r"belongs to user .* and has mode 755"):
        sources.secret_of_this_user()


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_has_a_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_RUN", tmp_path / "run")
    monkeypatch.setattr(sources.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(sources.Path, "home", no_home)
    assert len(sources.secret_of_this_user()) == 64


@pytest.mark.parametrize("trouble", ["somebody else's", "a full disk"])
def test_a_place_that_cannot_be_used_blocks_nobody(trouble, tmp_path, monkeypatch):
    """Also with TFRING_INSECURE there is a secret that others cannot compute."""
    monkeypatch.setattr(sources, "_RUN", tmp_path / "run")
    shared = tmp_path / "shared"
    monkeypatch.setattr(sources.tempfile, "gettempdir", lambda: str(shared))
    monkeypatch.setenv("HOME", str(tmp_path))
    if trouble == "somebody else's":
        (tmp_path / "theirs").mkdir(mode=0o700)
        shared.mkdir()
        (shared / f"tfring-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    launched = dataclasses.replace(identity(0, 2, 1), public_seed="seed")
    found = sources.find_secret(launched, Settings(insecure=True), several_hosts=False)
    assert found.text == sources.secret_of_this_user() and found.loopback_only
    assert os.listdir(tmp_path / ".cache/tfring") == ["secret"]


def test_munge_gives_the_secret(tmp_path, monkeypatch, connect_all):
    """Fakes munge's commands: only the user for whom a text was encoded can decode it."""
    scripts = {
        "munge": 'printf "MUNGE:"; base64 -w0; echo ":"',
        "unmunge": 'echo "UID: ${FAKE_UID}" > "${1#--metadata=}"; cut -d: -f2 | base64 -d',
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_UID", str(os.geteuid()))
    job = {"public_seed": "p", "several_hosts": True, "by_slurm": True}
    memberships, errors = connect_all(3, Settings(start_timeout=20), **job)
    assert not errors and memberships[0].key == memberships[2].key
    kept = munge.credential("s" * 64, "p")
    assert munge.secret_in(kept, "p") == "s" * 64
    with pytest.raises(SecretError, match="a credential of another job"):
        munge.secret_in(kept, "another job")
    # A process occupies the first port and repeats what an earlier init of this job sent.
    with Squatter(says=kept, closes=True) as replay:
        memberships, errors = run_ranks(
            lambda rank: connect_job(
                identity(rank, 2, replay.port, **job), Settings(start_timeout=40), {}
            ),
            range(2),
        )
        assert not errors and replay.visitors > 0
    for membership in memberships.values():
        close(membership)
    monkeypatch.setenv("FAKE_UID", "4711")
    _, errors = connect_all(2, Settings(start_timeout=4.0), **job)
    assert "belongs to user 4711" in str(errors[1])


def test_ranks_meet_without_any_port_given():
    """As under torchrun's agent, which has the only port that is known."""
    settings = Settings(secret=SECRET, start_timeout=20)
    memberships, errors = run_ranks(
        lambda rank: connect_job(identity(rank, 2, None, job_id="no port"), settings, {}), range(2)
    )
    assert not errors
    for membership in memberships.values():
        close(membership)


def test_records_of_many_ranks_are_small_on_the_wire():
    mine = records.Record.of_this_process(identity(0, 2, 1), read_settings({})).to_json()
    many = [
        {**mine, "rank": rank, "pid": 7919 * rank, "host": f"node{rank}"} for rank in range(1000)
    ]
    data = store_exchange._packed({"values": many})
    assert len(data) < len(exchange.encode(many)) / 5
    assert store_exchange._unpacked(data, 1 << 30) == {"values": many}
    with pytest.raises(BootstrapError):
        store_exchange._unpacked(data, 1000)  # the unpacked size is bounded


def test_that_the_key_travels_openly_is_said_once(caplog):
    records._warn_of_open_key.cache_clear()
    for _ in range(2):
        records._warn_of_open_key("MPI")
    assert caplog.text.count("MPI sends this job's key between hosts unencrypted") == 1
