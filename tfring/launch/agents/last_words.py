"""The exit report of a job whose launcher was killed before it could write it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfring.job.security.files import replace_file

RUNNING = "running"
LAUNCHER_DIED = "launcher died"


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Writes an exit report; readers never see a part of it. OSError if it cannot be written."""
    replace_file(path, json.dumps(report, indent=2) + "\n")


def finish_report(order: Mapping[str, Any], ended: Mapping[int, Mapping[str, Any]]) -> None:
    """Completes the report that the launcher wrote when the job began.

    The order has the `path` of the file and the `job_id` that its report must have. `ended` is what
    is known of the ranks of this host, by rank.
    """
    path = Path(order["path"])
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["job_id"] != order["job_id"] or report["state"] != RUNNING:
            return  # of another job, or complete
        report["state"] = LAUNCHER_DIED
        report["ended"] = time.time()
        report["explanation"] = (
            "The launcher (tfring run) ended without a word: it was killed by SIGKILL, perhaps "
            "because memory ran out. The agent of each host ended the ranks there."
        )
        for one in report.get("ranks", []):  # an elastic job names none before its end
            facts = ended.get(one["rank"])
            if facts is not None and one["exit_code"] is None:
                code = int(facts["code"])
                one["pid"] = facts.get("pid", one["pid"])
                one["exit_code"] = 128 - code if code < 0 else code
                one["signal"] = -code if code < 0 else None
                one["ended_by_launcher"] = True
        write_report(path, report)
