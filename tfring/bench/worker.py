"""The program of each rank of ``tfring bench``. Rank 0 prints the table and writes the file.

Its one argument is `BenchOptions` as JSON.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfring.bench.cases import Case, cases
from tfring.bench.options import BenchOptions
from tfring.bench.result import ALONE, Result, Row, machine, versions
from tfring.bench.sync import RankSync
from tfring.bench.table import LEGEND, heading, line, title
from tfring.bench.timing import Turn, alternate, timed, timed_alone
from tfring.bench.verdict import verdict
from tfring.collectives.objects import allgather_json
from tfring.runtime.topology import local_rank, local_size, rank, size
from tfring.world import init

# Exit codes: an option is impossible; Ctrl-C.
_WRONG, _INTERRUPTED = 2, 130


def set_threads() -> int:
    """Gives each rank its share of the cores for computing; returns how many threads that is.

    Two operations run at once at least: with one, TensorFlow computes all weight gradients at the
    end of the backward pass.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // local_size())
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    return threads


class Measurement:
    """One run on this rank; all ranks do the same."""

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self._sync = RankSync()
        self._section = ""
        self._began = time.monotonic()
        threads = set_threads()
        hosts = sum(place == 0 for place in allgather_json(local_rank(), "tfring.bench.hosts"))
        self._result = Result(
            ranks=size(),
            hosts=hosts,
            began=time.time(),
            options=asdict(options),
            machine={**machine(), "threads": threads},
            versions=versions(),
        )

    def run(self) -> None:
        """Measures all cases.

        Raises:
            ValueError: An option is impossible; on all ranks alike.
        """
        self._check_file()
        todo = list(cases(self._options))
        _print(f"{title(self._result)}\n{LEGEND}")
        self._began = time.monotonic()
        for number, case in enumerate(todo):
            left = len(todo) - number
            seconds = self._share(left)
            if seconds <= 0 and number:
                self._note(
                    f"the time limit of {self._options.time_limit:g} s was reached before "
                    f"{case.label}; raise --time-limit to measure that and {left - 1} more"
                )
                break
            for row in measure(self._sync, case, seconds):
                self._show(row)
        self._result.complete = True
        self._write()
        _print("\n".join(["", *verdict(self._result)]).rstrip())

    def _write(self) -> None:
        """Writes the file, after each row: a run that is broken off leaves what it has."""
        if rank() == 0 and self._options.json is not None:
            self._result.write(self._options.json)

    def _check_file(self) -> None:
        """Refuses a file that cannot be written, before anything is measured."""
        name = self._options.json
        folder = Path(name or ".").absolute().parent
        refused = name is not None and rank() == 0 and not os.access(folder, os.W_OK)
        if allgather_json(refused, "tfring.bench.file")[0]:
            raise ValueError(f"rank 0 cannot write --json {name}: {folder} is no writable folder")

    def _share(self, left: int) -> float:
        """Returns how many seconds the next of the cases that are left may take."""
        if not self._options.time_limit:
            return math.inf
        spent = self._sync.slowest(np.array([time.monotonic() - self._began]))[0]
        return (self._options.time_limit - float(spent)) / left

    def _show(self, row: Row) -> None:
        self._result.rows.append(row)
        if row.section != self._section:
            self._section = row.section
            _print("\n".join(["", *heading(row)]))
        _print(line(row))
        self._write()

    def _note(self, text: str) -> None:
        self._result.notes.append(text)
        if rank() == 0:
            print(f"tfring bench: {text}", file=sys.stderr, flush=True)


def measure(sync: RankSync, case: Case, seconds: float) -> list[Row]:
    """Measures one case for about so many seconds; all ranks call it and get the same rows."""
    calls = case.build()
    turns: dict[str, Turn] = {
        name: timed_alone(sync, rank() == 0, call) if name == ALONE else timed(sync.barrier, call)
        for name, call in calls.items()
    }
    rows = case.rows(alternate(sync, turns, case.rounds, calls=case.calls, seconds=seconds))
    del calls, turns
    gc.collect()  # what this case had takes no memory from the next one
    return rows


def main() -> int:
    """Runs the program; returns the exit code."""
    options = BenchOptions.from_json(sys.argv[1])
    tf.config.set_visible_devices([], "GPU")
    init()
    try:
        Measurement(options).run()
    except ValueError as error:  # the same on all ranks
        if rank() == 0:
            print(f"tfring bench: {error}", file=sys.stderr, flush=True)
        return _WRONG
    except KeyboardInterrupt:
        return _INTERRUPTED  # who pressed it needs no traceback
    return 0


def _print(text: str) -> None:
    """Prints lines of the table on rank 0."""
    if rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
