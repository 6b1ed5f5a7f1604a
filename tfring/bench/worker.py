"""The program of each rank of ``tfring bench``: measures; rank 0 tells what it has found.

It gets one argument, JSON: the options, and "files", which rank 0 writes; without those it prints
events for the process that has started it, each in a line that begins with MARK.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.bench.cases import Case, cases
from tfring.bench.display import MARK, Display, Files
from tfring.bench.options import BenchOptions
from tfring.bench.peers.available import chosen_peers
from tfring.bench.peers.children import PeerError
from tfring.bench.peers.team import Team
from tfring.bench.result import ALONE, BARE, Result, machine, versions
from tfring.bench.sync import RankSync, shared_file
from tfring.bench.timing import alternate, timed, timed_alone
from tfring.collectives.objects import allgather_json
from tfring.runtime.topology import local_rank, local_size, rank, size
from tfring.world import init, mpi_enabled

Emit = Callable[[dict[str, Any]], None]
# Exit codes: a peer has failed; an option is impossible; Ctrl-C.
_FAILED, _WRONG, _INTERRUPTED = 1, 2, 130


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
    """One run on this rank; all ranks do the same.

    Args:
        options: What to measure.
        emit: Gets events; on rank 0 only it is told anything.
    """

    def __init__(self, options: BenchOptions, emit: Emit) -> None:
        self._options = options
        self._emit: Emit = emit if rank() == 0 else lambda event: None
        self._barrier = shared_file()
        self._sync = RankSync(self._barrier)
        self._threads = set_threads()
        self._began = time.monotonic()
        self._said: set[str] = set()

    def run(self) -> None:
        """Measures all cases.

        Raises:
            ValueError: An option is impossible; on all ranks alike.
            PeerError: A process of a peer has failed.
        """
        peers, left_out = chosen_peers(self._options.against, mpi_enabled())
        todo = list(cases(self._options))
        self._emit(self._begin(peers, len(todo)))
        for why in left_out:
            self._note(f"not measured: {why}")
        with closing(Team(peers, self._sync, self._barrier, self._threads)) as team:
            self._began = time.monotonic()
            for number, case in enumerate(todo):
                seconds = self._share(len(todo) - number)
                if seconds <= 0 and number:
                    self._note(
                        f"the time limit of {self._options.time_limit:g} s was reached before "
                        f"{case.label}; raise --time-limit to measure that and "
                        f"{len(todo) - number - 1} more"
                    )
                    break
                self._emit({"event": "case", "label": case.label})
                self._measure(case, team, seconds)
        self._emit({"event": "end"})

    def _begin(self, peers: list[str], count: int) -> dict[str, Any]:
        hosts = sum(place == 0 for place in allgather_json(local_rank(), "tfring.bench.hosts"))
        result = Result(
            ranks=size(),
            hosts=hosts,
            began=time.time(),
            options=asdict(self._options),
            machine={**machine(), "threads": self._threads},
            versions=versions(),
        )
        return {"event": "begin", "result": asdict(result), "peers": peers, "cases": count}

    def _share(self, left: int) -> float:
        """Returns how many seconds the next of the cases that are left may take."""
        if not self._options.time_limit:
            return math.inf
        spent = self._sync.slowest(np.array([time.monotonic() - self._began]))[0]
        return (self._options.time_limit - float(spent)) / left

    def _measure(self, case: Case, team: Team, seconds: float) -> None:
        calls = case.build()
        turns = {
            name: timed_alone(self._sync, rank() == 0, call)
            if name == ALONE
            else timed(self._sync.barrier, call)
            for name, call in calls.items()
        }
        theirs, left_out = team.prepare(case.spec, calls[BARE])
        for why in left_out:
            self._note(f"{case.section} without {why}")
        times = alternate(
            self._sync, {**turns, **theirs}, case.rounds, calls=case.calls, seconds=seconds
        )
        for row in case.rows(times, list(theirs)):
            self._emit({"event": "row", "row": asdict(row)})
        del calls, turns
        gc.collect()  # what this case had takes no memory from the next one

    def _note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._emit({"event": "note", "text": text})


def main() -> int:
    """Runs the program; returns the exit code."""
    given = json.loads(sys.argv[1])
    options = BenchOptions.from_json(given["options"])
    tf.config.set_visible_devices([], "GPU")
    init()
    if given["files"] is None:
        return _measure(options, _print_event)
    with Display(Files(**given["files"])) as display:
        try:
            code = _measure(options, display.handle)
        finally:
            display.write()  # only rank 0's has anything
    if display.error:
        print(f"tfring bench: {display.error}", file=sys.stderr)
    return code


def _measure(options: BenchOptions, emit: Emit) -> int:
    try:
        Measurement(options, emit).run()
    except ValueError as error:  # the same on all ranks
        if rank() == 0:
            emit({"event": "error", "text": str(error)})
        return _WRONG
    except KeyboardInterrupt:
        return _INTERRUPTED  # whoever did that needs no stack
    except PeerError as error:  # of one rank; the others end because this one does
        print(f"tfring bench: {error}", file=sys.stderr, flush=True)
        return _FAILED
    return 0


def _print_event(event: dict[str, Any]) -> None:
    print(f"{MARK}{json.dumps(event)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
