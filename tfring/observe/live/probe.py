"""Tells by an exit code how the ranks of this container are.

``python -m tfring.observe.live.probe live|ready`` is for the probes of Kubernetes. It reads the
ranks' records and asks no rank. It loads little, because it starts every few seconds beside the
training.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import jobs, record_files
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import RecordError, read_header

# A rank wakes up for each heartbeat. After missing this many it does not run any more.
_HEARTBEATS, _HEARTBEAT_SECONDS = 12, 5.0
_HERE = ("running", "stopped")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what is wrong, or "ok"; returns 1 or 0."""
    program = "python -m tfring.observe.live.probe"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("question", choices=["live", "ready"])
    parser.add_argument("--ranks", type=int, default=1, help="how many there have to be (ready)")
    parser.add_argument(
        "--seconds",
        type=float,
        help="a rank that was not awake for this long counts as dead; 0: never "
        f"(default {_HEARTBEATS} times TFRING_HEARTBEAT_SECONDS)",
    )
    options = parser.parse_args(argv)
    headers = find_present(read_headers(), time.monotonic_ns())
    wrong = find_trouble(
        headers, read_silent_seconds() if options.seconds is None else options.seconds
    )
    if options.question == "ready" and not wrong:
        wrong = count_missing(headers, options.ranks)
    print(wrong or "ok")
    return 1 if wrong else 0


def read_silent_seconds() -> float:
    """Returns how many seconds a rank may sleep; 0 for any time, if there are no heartbeats.

    A container's variables are those of its probes, too.
    """
    try:
        beat = float(os.environ.get("TFRING_HEARTBEAT_SECONDS") or _HEARTBEAT_SECONDS)
    except ValueError:  # the ranks refuse it
        beat = _HEARTBEAT_SECONDS
    return _HEARTBEATS * beat


def read_headers() -> list[dict[str, Any]]:
    """Returns the headers of all records of this host, also of ended jobs."""
    given = os.environ.get("TFRING_RECORD_DIR")
    found = []
    for folder in jobs(Path(given) if given else None):
        for path in record_files(folder):
            try:
                found.append(read_header(path))
            except (OSError, RecordError):  # it was removed meanwhile, or is being made
                continue
    return found


def find_present(headers: Iterable[dict[str, Any]], now: int) -> list[dict[str, Any]]:
    """Returns the newest header of each live process, by rank.

    Each has two more fields: `process` ("running" or "stopped") and `silent`, the seconds since the
    rank's control thread was awake.

    Args:
        headers: Of records. A process that calls init again has several.
        now: The time, in nanoseconds of the host's monotonic clock.
    """
    newest: dict[tuple[int, int], dict[str, Any]] = {}
    for header in headers:
        state = process_state(header)
        if state not in _HERE:
            continue
        process = header["pid"], header["pid_started"]
        if process in newest and newest[process]["started_wall"] > header["started_wall"]:
            continue
        newest[process] = {**header, "process": state, "silent": (now - header["awake"]) / 1e9}
    return sorted(newest.values(), key=lambda header: int(header["rank"]))


def find_trouble(headers: Iterable[dict[str, Any]], seconds: float) -> str:
    """Returns which rank does not run any more, and how that is known; "" if all do.

    A rank before init or after shutdown is not in trouble, nor is one that waits for others.

    Args:
        headers: As `find_present` returns them.
        seconds: How long a rank may sleep; 0: for ever. A job of one rank may, too.
    """
    for header in headers:
        if header["state"] != RankState.RUNNING:
            continue
        who = f"rank {header['rank']} of {header['size']} (process {header['pid']})"
        if header["process"] == "stopped":
            return f"{who} was stopped by a signal or a debugger"
        if seconds and header["size"] > 1 and header["silent"] > seconds:
            return f"{who} has not been awake for {header['silent']:.0f} s, and may for {seconds:g}"
    return ""


def count_missing(headers: Iterable[dict[str, Any]], ranks: int) -> str:
    """Returns how many ranks have not finished init yet, or have left; "" if none.

    Args:
        headers: As `find_present` returns them.
        ranks: How many there have to be.
    """
    there = [int(one["rank"]) for one in headers if one["state"] == RankState.RUNNING]
    if len(there) >= ranks:
        return ""
    return f"{len(there)} of {ranks} ranks take part in training: {there}"


if __name__ == "__main__":
    sys.exit(main())
