"""The processes of peers: the message when one fails, and runs with the real libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher_tools as tools
import pytest

from benchmarks.peers.children import Child, PeerError
from benchmarks.peers.task import Place

ALONE = Place(0, 1, "127.0.0.1", "lo", 1, -1, None)


def test_what_mpi_cannot_do_is_said() -> None:
    pytest.importorskip("mpi4py")
    # In a process of its own: importing mpi4py.MPI starts MPI.
    code = (
        "from benchmarks.peers.mpi import mpi_call\n"
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


@pytest.mark.soak
@pytest.mark.parametrize("name", ["mpi", "mwms", "gloo"])
def test_peers_take_turns_with_the_ranks(name: str, tmp_path: Path) -> None:
    if name == "gloo":
        pytest.importorskip("torch")
    path = tmp_path / "a.json"
    words = ["--max-bytes", "4", "--against", name, "--json", str(path)]
    words += ["--collective", "allreduce,scatter", "--step", "mlp"]
    program = [sys.executable, "-m", "benchmarks.peers", *words]
    done = tools.finish([*tools.open_mpi_command(), "-np", "2", *program], **tools.AS_ROOT)
    assert done.returncode == 0, done.stderr
    allreduce, scatter, step = json.loads(path.read_text())["rows"]
    assert allreduce[name] > 0
    missing = {"mpi": "", "mwms": "mwms: tf.distribute has no scatter", "gloo": ""}
    assert scatter["notes"] == missing[name]
    assert (step[name] is None) == (name == "gloo")
