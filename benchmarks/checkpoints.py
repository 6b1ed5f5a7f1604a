"""The cost of a checkpoint of all ranks, compared with raw writes and np.savez on the same disk.

    mpirun -np 2 python -m benchmarks.checkpoints --folder /scratch/try --gib 2 --json out.json

In each round all ranks write their share of the state at the same time: raw (write and fsync), with
np.savez and fsync, and with a Checkpointer, from `save` until the manifests of all shares exist.
The order changes from round to round. Beside it: how long `save` blocks, against one memory copy of
the share right before; memory above the state at its highest (VmHWM); how long all ranks read their
shares, and how long `latest` takes. Times are those of the slowest rank, results the medians of the
rounds. One round before them is not counted.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from tfring.checkpoint import Checkpointer
from tfring.checkpoint.shares import Share

ARRAYS = 64  # of all ranks together
PIECE = 16 << 20  # bytes of a raw write


def memory(name: str) -> int:
    """Returns a line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def reset_peak() -> None:
    """Resets VmHWM."""
    Path("/proc/self/clear_refs").write_text("5")


def write_raw(state: dict[str, Any], path: Path) -> None:
    """Writes the bytes of the arrays one after the other, and syncs them to the disk."""
    with open(path, "wb") as file:
        for array in state.values():
            flat = memoryview(array).cast("B")
            for begin in range(0, len(flat), PIECE):
                file.write(flat[begin : begin + PIECE])
        file.flush()
        os.fsync(file.fileno())


def write_npz(state: dict[str, Any], path: Path) -> None:
    """As `write_raw`, with np.savez."""
    with open(path, "wb") as file:
        np.savez(file, **state)
        file.flush()
        os.fsync(file.fileno())


class Ours:
    """Checkpoints of all ranks in one folder."""

    def __init__(self, folder: Path, state: dict[str, Any], comm: Any) -> None:
        self._state, self._comm, self._folder = state, comm, folder
        self.checkpoints = Checkpointer(folder, keep_last=1)
        self._generation = comm.bcast(self.checkpoints.reserve() if comm.rank == 0 else None)
        self._step = 0
        self.blocked: list[float] = []

    def __call__(self) -> None:
        """Saves; returns when the checkpoint is complete."""
        self._step += 1
        data = self._comm.bcast(self.checkpoints.new_data(self._step, self._generation))
        share = Share(data, self._comm.rank, self._comm.size)
        started = time.perf_counter()
        self.checkpoints.save(self._state, self._step, self._generation, share=share, must=True)
        self.blocked.append(time.perf_counter() - started)
        name = f"g{self._generation:05d}-s{self._step:09d}"
        mine = data.replace(".npz", f".{share.index}") if share.index else name
        while not (self._folder / f"{mine}.json").exists():
            time.sleep(0.002)

    def read(self, names: set[str]) -> dict[str, Any]:
        """Reads arrays of the newest checkpoint."""
        info = self.checkpoints.latest()
        assert info is not None
        return self.checkpoints.read(info, names)

    def finish(self) -> None:
        """Waits until the checkpoint is read back and old ones are removed."""
        self.checkpoints.wait()


def slowest(comm: Any, call: Callable[[], object]) -> float:
    """Returns the seconds of a call on the slowest rank."""
    comm.Barrier()
    started = time.perf_counter()
    call()
    return float(max(comm.allgather(time.perf_counter() - started)))


def measure(folder: Path, gib: float, rounds: int, comm: Any) -> dict[str, Any]:
    """Returns one row of the report; the same on all ranks."""
    each = int(gib * (1 << 30)) // 4 // ARRAYS
    mine = range(comm.rank, ARRAYS, comm.size)
    state = {f"v{k}": np.random.default_rng(k).random(each, np.float32) for k in mine}
    target = {name: np.zeros_like(array) for name, array in state.items()}

    def copy() -> None:
        for name, array in state.items():
            np.copyto(target[name], array)

    copy()
    reset_peak()
    before = memory("VmHWM")
    raw, npz = folder / f"raw{comm.rank}", folder / f"npz{comm.rank}"
    ours = Ours(folder / "ours", state, comm)
    ways: dict[str, Callable[[], object]] = {
        "raw": lambda: write_raw(state, raw),
        "npz": lambda: write_npz(state, npz),
        "ours": ours,
    }
    times: dict[str, list[float]] = {name: [] for name in (*ways, "copy")}
    order = random.Random(0)
    for _ in range(rounds + 1):
        for name in order.sample(sorted(ways), len(ways)):
            if name == "ours":
                times["copy"].append(slowest(comm, copy))
            times[name].append(slowest(comm, ways[name]))
            ours.finish()
            for path in (raw, npz):
                path.unlink(missing_ok=True)
    peak = memory("VmHWM") - before
    times["blocked"] = [max(ranks) for ranks in zip(*comm.allgather(ours.blocked), strict=True)]
    median = {name: common.median(values[1:]) for name, values in times.items()}
    nbytes = sum(array.nbytes for array in state.values())
    names = set(state)
    state.clear()
    return {
        "GiB": gib,
        "raw_s": median["raw"],
        "npz_s": median["npz"],
        "ours_s": median["ours"],
        "speed_of_raw": median["raw"] / median["ours"],
        "copy_s": median["copy"],
        "blocked_s": median["blocked"],
        "blocked_copies": median["blocked"] / median["copy"],
        "memory_copies": max(comm.allgather(peak / nbytes)),
        "read_s": slowest(comm, lambda: ours.read(names)),
        "latest_s": slowest(comm, ours.checkpoints.latest),
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--folder", required=True, help="on the disk that is measured")
    parser.add_argument("--gib", type=float, default=2.0, help="of all ranks together")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    comm = common.world_comm()
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    row = measure(folder, arguments.gib, arguments.rounds, comm)
    if hvd.rank() != 0:
        return 0
    report = common.Report("checkpoints", hvd.size(), rows=[row])
    report.goals += [
        common.Goal("raw writing, times as fast as ours", 1 / row["speed_of_raw"], 1 / 0.8),
        common.Goal("training blocked, memory copies", row["blocked_copies"], 1.2),
        common.Goal("memory above the state, copies of a share", row["memory_copies"], 1.2),
    ]
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
