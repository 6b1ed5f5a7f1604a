"""Where messages between the workers and the coordinator lie in the store of an elastic job."""

from __future__ import annotations

# All keys lie below it.
PREFIX = "membership"
REPORTS = "report/"
# It exists once a worker has come to elastic.run: until then all start again after a loss. The
# coordinator hears of it with the reports.
RUNS = f"{REPORTS}runs"
# The last report of a worker, whose link was closed.
CLOSED = b""


def report_key(worker: int) -> str:
    """Returns where a worker reports."""
    return f"{REPORTS}{worker}"


def reporter(key: str) -> int | None:
    """Returns the worker that reports in a key; None if the key is no worker's."""
    text = key.removeprefix(REPORTS)
    worker = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
    return worker if 0 < worker < 1 << 64 else None


def answer_key(worker: int) -> str:
    """Returns where the coordinator answers a worker's reports."""
    return f"command/{worker}/answer"


def order_key(worker: int) -> str:
    """Returns where a worker finds the newest of all other commands."""
    return f"command/{worker}/order"
