"""The processes of peers: what is said when one fails, and all of it with the real ones."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import launcher_tools as tools
import pytest
from ssh_hosts import ssh_hosts

from tfring.bench.peers.available import chosen_peers
from tfring.bench.peers.children import Child, PeerError
from tfring.bench.peers.task import Place
from tfring.bench.result import read_result

ALONE = Place(0, 1, "127.0.0.1", "lo", 1, -1, None, 1)


def test_all_peers_are_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    names, left_out = chosen_peers(["all"], under_mpi=False)
    assert names == ["mwms"]
    assert [why.partition(" needs ")[0] for why in left_out] == ["mpi", "gloo"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert chosen_peers(["all"], under_mpi=True) == (["mpi", "gloo", "mwms"], [])
    assert chosen_peers([], under_mpi=True) == ([], [])


def test_what_mpi_cannot_do_is_said() -> None:
    pytest.importorskip("mpi4py")
    # In a process of its own: importing mpi4py.MPI starts MPI.
    code = (
        "from tfring.bench.peers.mpi import mpi_call\n"
        "print(mpi_call({'kind': 'allreduce', 'bytes': 4, 'dtype': 'bfloat16'}, None))"
    )
    done = tools.run_python("-c", code, **tools.AS_ROOT)
    assert done.stdout == "MPI has no sum of bfloat16\n", done.stderr


def test_a_peer_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgloo.so is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    child = Child("gloo", ALONE)
    try:
        with pytest.raises(PeerError) as failure:
            child.address()
    finally:
        child.close()
    text = str(failure.value)
    assert "rank 0: the process of the peer gloo has ended; leave it out of --against" in text
    assert "libgloo.so is missing" in text


def test_a_process_of_a_peer_ends_with_its_rank(tmp_path: Path) -> None:
    """Also where it waits for others, which never come."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("def set_num_threads(count): pass\n")
    (tmp_path / "torch/distributed.py").write_text(
        "import os, time\n"
        "def TCPStore(*args, **more):\n"
        f"    open({str(tmp_path / 'tmp')!r}, 'w').write(str(os.getpid()))\n"
        f"    os.rename({str(tmp_path / 'tmp')!r}, {str(tmp_path / 'pid.0')!r})\n"
        "    time.sleep(300)\n"
    )
    code = (
        "from tfring.bench.peers.children import Child\n"
        "from tfring.bench.peers.task import Place\n"
        "Child('gloo', Place(0, 2, '127.0.0.1', 'lo', 1, -1, None, 1)).address()\n"
    )
    path = os.pathsep.join([str(tmp_path), str(tools.ROOT)])
    rank = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    try:
        assert tools.wait_until((tmp_path / "pid.0").exists)
    finally:
        rank.kill()
        rank.wait()
    pid = int((tmp_path / "pid.0").read_text())
    assert tools.wait_until(lambda: not tools.alive(pid))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["mwms", "gloo"])
def test_peers_take_turns_with_the_ranks(name: str, tmp_path: Path) -> None:
    if name == "gloo":
        pytest.importorskip("torch")
    path = tmp_path / "a.json"
    words = ["bench", "--max-bytes", "4", "--against", name, "--json", str(path)]
    more = ["--collective", "allreduce,scatter", "--step", "mlp", "--time-limit", "10"]
    done = tools.finish([sys.executable, "-m", "tfring", *words, *more])
    assert done.returncode == 0, done.stderr
    rows = {row.section: row for row in read_result(str(path)).rows}
    assert rows["allreduce float32"].peers_ms[name] > 0
    missing = {"mwms": "scatter float32 without mwms: tf.distribute has no scatter"}
    missing["gloo"] = "step mlp without gloo: a training step in PyTorch is another program"
    assert missing[name] in done.stderr
    assert ("step mlp" in rows) and (name in rows["step mlp"].peers_ms) == (name == "mwms")


@pytest.mark.soak
def test_ranks_and_peers_on_two_hosts(tmp_path: Path) -> None:
    """Without a page that all share: tfring's barrier, and those of the peers."""
    peers = ["mwms", *(["gloo"] if importlib.util.find_spec("torch") else [])]
    path = tmp_path / "a.json"
    words = ["bench", "-H", "h0:1,h1:2", "--max-bytes", "4", "--time-limit", "20"]
    command = [sys.executable, "-m", "tfring", *words, "--json", str(path)]
    (tmp_path / "hosts").mkdir()
    with ssh_hosts(tmp_path / "hosts", 2) as hosts:
        job = hosts.start(*command, "--against", ",".join(peers))
        _, errors = job.communicate(timeout=tools.LIMIT_SECONDS)
    assert job.returncode == 0, errors
    result = read_result(str(path))
    assert (result.ranks, result.hosts, result.complete) == (3, 2, True)
    assert set(result.rows[0].peers_ms) == set(peers)
