"""``tfring explain``: says in a paragraph what is wrong with a job."""

from __future__ import annotations

import argparse
import json
import textwrap

from tfring.commands.which import add_job, meant
from tfring.explain.causes import Explanation
from tfring.explain.explain import explain_now
from tfring.recorder.places import short

NAME = "explain"
HELP = "say in a paragraph what is wrong with a job, while it runs or when it is over"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    add_job(parser)
    parser.add_argument(
        "--json", action="store_true", help="job, cause, ranks, names and text as JSON"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the explanation; returns 0."""
    found = explain_now(meant(options.job))
    told = f"Job {short(found.job)}: {found.text}"
    print(_as_json(found) if options.json else textwrap.fill(told, 100, break_on_hyphens=False))
    return 0


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
