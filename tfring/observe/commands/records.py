"""``tfring records``: the last calls of one rank."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.observe.commands.which import add_job_argument, resolve_job
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.reader import Call, RecordError, find_last_sign
from tfring.runtime.texts.plain import plain
from tfring.runtime.texts.times import time_text

_LAST = 20
_MOST = 8192  # that many a record has
_WAITS, _RUNS = "waits", "runs"
_SECOND = 1e9


@dataclass(frozen=True)
class CallRow:
    """A call of a collective.

    Attributes:
        name: Of the tensor.
        kind: As "allreduce".
        line: Of the program, as "train.py:40"; "": unknown.
        state: "waits": some rank has not made this call; "runs"; or how it ended, as "OK".
        ago: When it was made, in seconds before the rank was last seen.
        took: Seconds until its end, or until the rank was last seen.
        invocation: Which call of this name it is, from 1 on.
        process_set: The number of its process set; 0: all ranks.
        dtype: Of the tensor.
        shapes: Of the first tensors.
        bytes: Of all its tensors.
    """

    name: str
    kind: str
    line: str
    state: str
    ago: float
    took: float
    invocation: int
    process_set: int
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int


@dataclass(frozen=True)
class Answer:
    """The last calls of one rank.

    Attributes:
        job: Its id.
        rank: The rank.
        found: How many of the recorded calls fit.
        calls: The last ones of them, the newest last.
    """

    job: str
    rank: int
    found: int
    calls: list[CallRow]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Prints the last calls of collectives of one rank, while the job runs or hangs, and after "
        "it has failed."
    )
    parser.epilog = "tfring records --rank 1\ntfring records 6d83ae --rank 1 --state waits"
    add_job_argument(parser)
    add_json_option(parser, Answer)
    add = parser.add_argument
    add("--rank", type=int, default=0, metavar="N", help="whose calls (default %(default)s)")
    add("--name", default="", metavar="TEXT", help="only calls whose name has this text")
    about = "only calls that are so: waits, runs, or as they ended, such as OK"
    add("--state", default="", metavar="STATE", help=about)
    add("--last", type=int, default=_LAST, metavar="N", help="how many (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Prints the calls; returns 0."""
    found = answer(options.job, options.rank, options.name, options.state, options.last)
    if options.json:
        print_json(found)
        return 0
    for call in found.calls:
        where = f" ({call.line})" if call.line else ""
        what = plain(f"{call.kind} of tensor '{call.name}'{where}")
        print(f"{time_text(call.ago):>8} ago  {call.state:>6} {time_text(call.took):>8}  {what}")
    print(f"{len(found.calls)} of {found.found} calls of rank {found.rank}")
    return 0


def answer(
    given: Sequence[str], rank: int = 0, name: str = "", state: str = "", last: int = _LAST
) -> Answer:
    """Returns the last calls of a rank.

    Args:
        given: The job, as for `load_job`.
        rank: Whose calls.
        name: Only calls whose name has this text.
        state: Only calls with this state; "": all.
        last: At most this many.

    Raises:
        RecordError: There is no such job, or no record of that rank here.
        ValueError: An impossible number of calls.
    """
    if not 1 <= last <= _MOST:
        raise ValueError(f"--last {last}: use 1 to {_MOST}")
    job = load_job(resolve_job(given))
    if rank not in job.records:
        known = ", ".join(map(str, job.records))
        raise RecordError(f"rank {rank} has no record here; ranks that have one: {known}")
    record = job.records[rank]
    fit = [c for c in record.calls if name in c.name and state in ("", _state(c))]
    now = find_last_sign(record)
    return Answer(job.job, rank, len(fit), [_row(call, now) for call in fit[-last:]])


def _state(call: Call) -> str:
    return _WAITS if call.waits else _RUNS if call.runs else call.status


def _row(call: Call, now: int) -> CallRow:
    return CallRow(
        name=call.name,
        kind=call.kind,
        line=call.call_site,
        state=_state(call),
        ago=max(0, now - call.submitted) / _SECOND,
        took=max(0, (call.ended or now) - call.submitted) / _SECOND,
        invocation=call.invocation,
        process_set=call.process_set,
        dtype=call.dtype,
        shapes=call.shapes,
        bytes=call.bytes,
    )
