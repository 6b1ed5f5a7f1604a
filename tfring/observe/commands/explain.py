"""``tfring explain``: says in a paragraph what is wrong with a job."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.observe.commands.which import add_job_argument, find_ended, resolve_job
from tfring.observe.explain.causes import WELL, Cause, Explanation, RankLine
from tfring.observe.explain.explain import explain_now
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.recorder import catalog
from tfring.observe.recorder.catalog import JobNote
from tfring.observe.recorder.places import short
from tfring.runtime.texts.words import upper_first

# What to do where the finding itself has no advice.
_NEXT_STEPS = {
    Cause.NOTHING: "If the job is slow, `tfring report` says where its time goes.",
    Cause.OVER: "`tfring report` says where the time went.",
    Cause.NOT_CALLING: (
        "Look at why this rank does not get past its line: `tfring stacks` shows all its threads. "
        "Often it waits for input or a lock, or it evaluates or saves alone."
    ),
}
_NEXT_STEP = "Look at the end of the error output of each rank."


@dataclass(frozen=True)
class Answer:
    """What is wrong with a job.

    Attributes:
        job: Its id.
        cause: The name of the cause, such as NOT_CALLING.
        ranks: The ranks at fault if known, else all that take part; []: none.
        names: Of the tensors that it is about.
        lines: Where each rank is in the program; []: its records are gone.
        evidence: What shows that it is so, one fact each, most important first.
        next_step: What to do now.
        text: All of it in a paragraph, as the command prints it without --json.
    """

    job: str
    cause: str
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    lines: tuple[RankLine, ...]
    evidence: tuple[str, ...]
    next_step: str
    text: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Says in a paragraph why a job hangs, has failed or is slow: the rank, the line of the "
        "program, who waits for it, and what to do. It knows a job for a day after its end."
    )
    parser.epilog = "tfring explain\ntfring explain 6d83ae\ntfring explain 6d83ae --json"
    add_job_argument(parser)
    add_json_option(parser, Answer)


def run(options: argparse.Namespace) -> int:
    """Prints the explanation; returns 0."""
    found = answer(options.job)
    if options.json:
        print_json(found)
    else:
        told = f"Job {short(found.job)}: {found.text}"
        print(textwrap.fill(told, 100, break_on_hyphens=False))
    return 0


def answer(given: Sequence[str]) -> Answer:
    """Returns what is wrong with a job; raises RecordError if there is no such job."""
    over = find_ended(given)
    found = _of_records(given) if over is None else _kept(over)
    ends = found.ends(found.age)
    return Answer(
        job=found.job,
        cause=found.cause.name,
        ranks=found.ranks,
        names=found.names,
        lines=found.lines,
        evidence=found.evidence,
        next_step=found.advice or _NEXT_STEPS.get(found.cause, _NEXT_STEP),
        text=f"{found.text} {ends}." if ends else found.text,
    )


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
    return Explanation(cause, (), text, job=entry.job, evidence=(text,))
