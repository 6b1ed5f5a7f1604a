"""``tfring explain``: says in a paragraph what is wrong with a job."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
import time
from collections.abc import Sequence

from tfring.observe.commands.which import add_job_argument, find_ended, resolve_job
from tfring.observe.explain.causes import WELL, Cause, Explanation
from tfring.observe.explain.explain import explain_now
from tfring.observe.recorder import catalog
from tfring.observe.recorder.catalog import JobNote
from tfring.observe.recorder.places import short
from tfring.runtime.texts.words import upper_first


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Says in a paragraph why a job hangs, has failed or is slow: the rank, the line of the "
        "program, who waits for it, and what to do. It knows a job for a day after its end."
    )
    parser.epilog = "tfring explain\ntfring explain 6d83ae\ntfring explain 6d83ae --json"
    add_job_argument(parser)
    parser.add_argument(
        "--json", action="store_true", help="job, cause, ranks, names and text as JSON"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the explanation; returns 0."""
    over = find_ended(options.job)
    found = _of_records(options.job) if over is None else _kept(over)
    if ends := found.ends(found.age):
        found = dataclasses.replace(found, text=f"{found.text} {ends}.")
    told = f"Job {short(found.job)}: {found.text}"
    print(_as_json(found) if options.json else textwrap.fill(told, 100, break_on_hyphens=False))
    return 0


def _of_records(given: Sequence[str]) -> Explanation:
    """Returns what the records say, behind the verdict that the launcher noted."""
    found = explain_now(resolve_job(given))
    entry = catalog.find_note(found.job)
    verdict = "" if entry is None else entry.end.get("verdict", "")
    if not verdict or found.text in verdict:
        return found
    text = verdict if found.cause in WELL else f"{verdict} Its records: {found.what or found.text}"
    return dataclasses.replace(found, text=text)


def _kept(entry: JobNote) -> Explanation:
    """Returns what was noted at the end of a job whose records are gone."""
    began = time.strftime("%H:%M", time.localtime(entry.began))
    until = time.strftime("%H:%M", time.localtime(entry.end["time"]))
    text = entry.end["verdict"] or "no rank has told what was wrong."
    if entry.end["state"] == "ended":
        text = "the job is over, without an error."
    text = f"{upper_first(text)} It ran from {began} to {until}."
    cause = Cause.OVER if entry.end["state"] == "ended" else Cause.FAILED
    return Explanation(cause, (), text, job=entry.job)


def _as_json(found: Explanation) -> str:
    return json.dumps(
        {
            "job": found.job,
            "cause": found.cause.name,
            "ranks": list(found.ranks),
            "names": list(found.names),
            "text": found.text,
        }
    )
