"""Hosts as users and schedulers write them."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from run_options import run_options

from tfring.launch.hosts.allocations import find_allocation
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.lists import expand
from tfring.launch.hosts.names import refuse_unknown
from tfring.launch.hosts.placement import (
    Slot,
    address_of,
    assign_slots,
    crowded,
    is_local,
    parse_hostfile,
    parse_hosts,
)
from tfring.launch.hosts.slurm_gpus import read_gpus
from tfring.launch.options.resolve import job_options
from tfring.runtime.ssh import SshOptions


def needs_clustershell():
    return pytest.importorskip("ClusterShell")


def test_gpus_of_a_slurm_job_by_node():
    shown = """\
       TRES=cpu=4,node=2,billing=4
       JOB_GRES=gpu:a100:4,gpu:v100:2
         Nodes=h[0-1],g7 CPU_IDs=2-3 Mem=0 GRES=gpu:a:2(IDX:0,3),gpu:v:1(IDX:2),shard:8(2/4)
         Nodes=h2 CPU_IDs=0 Mem=0 GRES=gpu:1
         Nodes=h3 CPU_IDs=0 Mem=0 GRES=nic:1(IDX:0)
         Nodes=h4 CPU_IDs=0 Mem=0 GRES=
       TresPerJob=gres:gpu:4
    """
    needs_clustershell()
    assert read_gpus(shown) == {"h0": 3, "h1": 3, "g7": 3, "h2": 1, "h3": 0, "h4": 0}


def test_hosts_as_users_write_them():
    needs_clustershell()
    assert parse_hosts("a:2, b-1.x:3,c,me@d:2,[fe80::1]:4,you@[::1],n[08-10]:2,me@x[1,3]-ib:1") == [
        *(("a", 2), ("b-1.x", 3), ("c", 1), ("me@d", 2), ("fe80::1", 4), ("you@::1", 1)),
        *(("n08", 2), ("n09", 2), ("n10", 2), ("me@x1-ib", 1), ("me@x3-ib", 1)),
    ]
    lines = ["# all", "a slots=2", "", "b:3 # two", "c", "n[1-2] slots=4", "[::1]:2", ""]
    for end in ("\n", "\r\n"):
        assert parse_hostfile(end.join(lines)) == [
            *(("a", 2), ("b", 3), ("c", 1), ("n1", 4), ("n2", 4), ("::1", 2))
        ]
    with pytest.raises(UsageError, match="Line 2"):
        parse_hostfile("a slots=1\nb slots=many\n")
    assert address_of("me@fe80::1") == "fe80::1" and address_of("a") == "a"


def test_placement():
    slots = assign_slots(4, [("a", 2), ("b", 1), ("c", 3)])
    assert slots == [
        Slot(0, "a", 0, 2, 0, 3),
        Slot(1, "a", 1, 2, 0, 1),
        Slot(2, "b", 0, 1, 1, 3),
        Slot(3, "c", 0, 1, 2, 3),
    ]
    assert len(assign_slots(None, [("a", 2), ("b", 2)])) == 4
    assert [s.host for s in assign_slots(2, [])] == [socket.gethostname()] * 2
    for ranks, hosts, words in (
        (0, [], "at least one"),
        (3, [("a", 2)], "more slots than the 2"),
        (2, parse_hosts("me@a:1,you@a:1"), "host a is named twice"),
        (None, [("a", 60000), ("b", 60000)], "a job has at most 100000"),
    ):
        with pytest.raises(UsageError, match=words):
            assign_slots(ranks, hosts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "") for text in ("a:0", "a:x", "a b", "-oProxyCommand=x:1", "a:1:2", "", ",,,")),
        ("fe80::1:4", "in brackets"),
        ("[fe80::zz]:4", "no|not"),
        ("[fe80:::1]", "IPv6"),
        ("me@", "host:slots"),
        ("me@you@a", "host:slots"),
        ("a/b", "not a list"),
    ],
)
def test_what_is_no_host_is_named(text, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_hosts(text)
    assert text in str(caught.value)


def test_another_user_on_this_host_needs_ssh():
    assert is_local("localhost") and not is_local("nobody-else@localhost")


def test_a_user_without_a_name_may_name_another():
    """As in containers whose user id has no name in the system."""

    def no_name():
        raise KeyError("getpwuid(): uid not found: 4711")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("getpass.getuser", no_name)
        assert is_local("localhost") and not is_local("me@localhost")


@pytest.mark.parametrize("text", ["n[1-", "n[2-1]", "n[x]", "n[0-99999999]", "n]1["])
def test_bad_ranges(text):
    needs_clustershell()
    with pytest.raises(UsageError):
        expand(text)


def test_ranges_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "ClusterShell.NodeSet", None)
    assert expand("a,b") == ["a", "b"]
    with pytest.raises(UsageError, match=r"tfring\[cluster\]"):
        expand("n[1-2]")


def test_slurm():
    needs_clustershell()
    job = {"SLURM_JOB_NODELIST": "n[01-03],login", "SLURM_TASKS_PER_NODE": "2(x3),1"}
    found = find_allocation(job)
    assert found is not None and found.scheduler == "Slurm" and found.slots == 7
    assert found.hosts == [("n01", 2), ("n02", 2), ("n03", 2), ("login", 1)]
    found = find_allocation({"SLURM_JOB_NODELIST": "a,b", "SLURM_NTASKS_PER_NODE": "3"})
    assert found is not None and found.hosts == [("a", 3), ("b", 3)]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"SLURM_TASKS_PER_NODE": "2,2,2"}, "tasks of 3"),
        ({"SLURM_TASKS_PER_NODE": "many"}, "many"),
        ({"SLURM_TASKS_PER_NODE": "1" * 5000}, "not numbers of tasks"),
        ({}, "ntasks-per-node"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}, "leave out srun"),
    ],
)
def test_slurm_that_cannot_be_read(more, words):
    with pytest.raises(UsageError, match=words):
        find_allocation({"SLURM_JOB_NODELIST": "a,b", **more})


def test_pbs_lsf_and_sge(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("a\na\nb\na\n")
    with_slots = tmp_path / "slots"
    with_slots.write_text("a 3 all.q@a UNDEFINED\n\nb 1 all.q@b UNDEFINED\n")
    for scheduler, job in {
        "PBS": {"PBS_NODEFILE": str(lines)},
        "LSF": {"LSB_DJOB_HOSTFILE": str(lines), "LSB_MCPU_HOSTS": "c 9"},
        "SGE": {"PE_HOSTFILE": str(with_slots)},
    }.items():
        found = find_allocation(job)
        assert found is not None and found.scheduler == scheduler
        assert found.hosts == [("a", 3), ("b", 1)]
    found = find_allocation({"LSB_MCPU_HOSTS": "a 3 b 1"})
    assert found is not None and found.hosts == [("a", 3), ("b", 1)]
    with_slots.write_text("a many\n")
    with pytest.raises(UsageError, match="a many"):
        find_allocation({"PE_HOSTFILE": str(with_slots)})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PBS_NODEFILE", "/nowhere/at-all", "PBS job cannot be read"),
        ("LSB_MCPU_HOSTS", "a b", "LSB_MCPU_HOSTS"),
        ("LSB_MCPU_HOSTS", "a 1 b", "LSB_MCPU_HOSTS"),
    ],
)
def test_what_other_schedulers_say_wrongly(name, value, words):
    with pytest.raises(UsageError, match=words):
        find_allocation({name: value})


def test_which_hosts_win(monkeypatch):
    def hosts(*words):
        return [slot.host for slot in job_options(run_options(*words)).slots]

    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UsageError, match="number of ranks is missing"):
        hosts()
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a,b")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    assert hosts() == ["a", "a", "b", "b"]
    assert hosts("-np", 1) == [socket.gethostname()]
    assert hosts("-H", "c:1") == ["c"]


def test_no_text_reaches_ssh_as_an_option(monkeypatch):
    for host in ("-oProxyCommand=x", "a b", "", "me@-x", "a;b"):
        with pytest.raises(ValueError, match="no name of a host"):
            SshOptions().command(host, ["true"])
    for host in ("node1", "me@node1", "fd00::1", "fe80::1%eth0", "10.0.0.1", "my_alias"):
        assert SshOptions().command(host, ["true"])[-3:] == ["--", host, "true"]
    monkeypatch.setenv("LSB_MCPU_HOSTS", "-oProxyCommand=x 4")
    with pytest.raises(UsageError, match="no name of a host"):
        find_allocation(os.environ)


def test_a_name_without_an_address_is_refused_before_anything_starts(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "hostname $3"\n[ $3 = alias.invalid ] && echo "proxyjump a"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    refuse_unknown(["localhost", "127.0.0.2", "me@127.0.0.3", "alias.invalid"])
    with pytest.raises(UsageError) as refused:
        refuse_unknown(["localhost", "me@nodeb.invalid"])
    assert str(refused.value).splitlines() == [
        "The host nodeb.invalid is unknown: its name does not resolve here.",
        "Check -H or the host file, and /etc/hosts.",
    ]


def test_more_ranks_than_cores_are_said(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert crowded(assign_slots(2, [])) == ""
    assert crowded(assign_slots(8, parse_hosts("localhost:2,node1.invalid:6"))) == ""
    what, do = crowded(assign_slots(5, [])).splitlines()
    assert "5 ranks share the 2 cores of this host" in what and "2.5 times" in what
    assert "fewer ranks" in do and "-H" in do
