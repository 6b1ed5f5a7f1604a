"""Shared by the benchmarks: start-up, side-by-side timing, goals, and the report.

mpirun starts a benchmark on every rank. A benchmark times its candidates in turn within one run,
because the speed of a shared machine changes from minute to minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tfring.bench.result import machine, versions
from tfring.bench.samples import median as median
from tfring.bench.samples import median_difference as median_difference
from tfring.bench.timing import alternate, timed


@dataclass
class Goal:
    """A number that must not exceed a limit."""

    what: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit


@dataclass
class Report:
    """The result of one benchmark; rank 0 prints it and writes the JSON file."""

    benchmark: str
    ranks: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        goals = [{**asdict(goal), "met": goal.met} for goal in self.goals]
        return {
            "benchmark": self.benchmark,
            "ranks": self.ranks,
            "machine": machine(),
            "versions": versions(),
            "rows": self.rows,
            "goals": goals,
        }

    def finish(self, path: str | None) -> int:
        """Prints the rows and goals; returns the exit code."""
        if self.rows:
            columns = list(self.rows[0])
            print("  ".join(f"{column:>18}" for column in columns))
            for row in self.rows:
                print("  ".join(f"{show(row.get(column)):>18}" for column in columns))
        for goal in self.goals:
            verdict = "met" if goal.met else "MISSED"
            print(f"goal {verdict}: {goal.what}: {goal.value:.3g} (at most {goal.limit:.3g})")
        if path:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.as_json(), file, indent=2)
                file.write("\n")
        sys.stdout.flush()
        return 0 if all(goal.met for goal in self.goals) else 1


def show(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", help="write the result to this file")
    return made


def one_core() -> None:
    """Gives TensorFlow one computing thread per rank, as on a machine with one core per rank.

    It gets two inter-op threads: with one, TensorFlow computes all weight gradients at the end.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def world_comm() -> Any:
    """Open MPI's COMM_WORLD. Call hvd.init() first: it decides how MPI starts."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def quiet_barrier(comm: Any) -> None:
    """A barrier that sleeps; ranks in Open MPI's own barrier keep their cores busy."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


@dataclass(frozen=True)
class MpiSync:
    """The ranks of a communicator; they spin while they wait for each other."""

    comm: Any

    def barrier(self) -> None:
        self.comm.Barrier()

    def slowest(self, values: Any) -> Any:
        from mpi4py import MPI

        largest = np.array(values, float)
        self.comm.Allreduce(MPI.IN_PLACE, largest, op=MPI.MAX)
        return largest


def side_by_side(
    comm: Any, candidates: dict[str, Callable[[], object]], repeats: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Times every call in milliseconds, on the slowest rank; the candidates take turns.

    Args:
      comm: an mpi4py communicator of all ranks.
      candidates: the calls to time, by name; the same names in the same order on all ranks.
      repeats: the number of timed rounds.
      warmup: the number of rounds before them that are not timed.

    Returns:
      For each name `repeats` numbers, the same on every rank.
    """
    sync = MpiSync(comm)
    turns = {name: timed(sync.barrier, call) for name, call in candidates.items()}
    times = alternate(sync, turns, repeats, warmup=warmup)
    return {name: took.ravel().tolist() for name, took in times.items()}
