"""The two lines of a job that goes well: who trains where, and where the time went."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfring.observe.recorder.places import short
from tfring.runtime.texts.times import time_text
from tfring.runtime.texts.words import counted
from tfring.version import __version__

if TYPE_CHECKING:
    from tfring.observe.report.summary import Report

# At most this many hosts are named.
_NAMED = 3


def wanted(runtime: Mapping[str, str]) -> bool:
    """Tells whether the log is for people, and not of warnings or errors alone.

    Args:
        runtime: The settings of the runtime that are set, by name without prefix.
    """
    level = runtime.get("LOG_LEVEL", "info")
    return level not in ("warning", "error") and runtime.get("LOG_FORMAT", "text") == "text"


def first_line(job: str, ranks: str, hosts: Sequence[str], *, devices: str, transport: str) -> str:
    """Returns "tfring 0.1.0  job 6d83ae  2 ranks on vm (2 CPUs)  shared memory  watch: tfring top".

    Args:
        job: Its id.
        ranks: How many.
        hosts: Their hosts; empty: unknown.
        devices: Of the only host; "": unknown.
        transport: See `transport`.
    """
    where = ", ".join(hosts) if len(hosts) <= _NAMED else f"{len(hosts)} hosts"
    trains = f"{ranks} on {where}" if hosts else ranks
    if devices:
        trains += f" ({devices})"
    parts = (f"tfring {__version__}", f"job {short(job)}", trains, transport, "watch: tfring top")
    return "  ".join(part for part in parts if part)


def last_line(seconds: float, report: Report | None) -> str:
    """Returns "tfring: done in 14 s, all ranks equal. 92% computing, ...".

    Args:
        seconds: How long the job took.
        report: Of the job; None: there is none.
    """
    done = f"tfring: done in {time_text(seconds)}"
    if report is None or report.size == 1:
        return done
    if report.equal is not None:
        done += ", all ranks equal" + ("" if report.equal else " but for rounding")
    total = float(report.steps.total.sum())
    if not total:
        return done
    waiting = round(100 * float(report.steps.waiting.sum()) / total)
    exposed = round(100 * float(report.steps.exposed.sum()) / total)
    who = ""
    if waiting and (slowest := report.slowest) is not None:
        share = round(100 * slowest.late / sum(rank.late for rank in report.ranks))
        who = f" ({share}% of it for rank {slowest.rank})"
    computing = 100 - waiting - exposed
    return f"{done}. {computing}% computing, {waiting}% waiting{who}, {exposed}% communication"


def own_devices(process: int = 0) -> str:
    """Returns "8 GPUs" of this host, or "2 CPUs" of a process; 0: this one."""
    count, name = len(glob.glob("/dev/nvidia[0-9]*")), "GPU"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = min(count, len([one for one in visible.split(",") if one not in ("", "-1")]))
    if not count:
        count, name = len(os.sched_getaffinity(process)), "CPU"
    return counted(count, name)


def transport(hosts: int, ranks: int, devices: str, runtime: Mapping[str, str]) -> str:
    """Returns what carries the data of ranks, as far as the settings say; "" for one rank.

    Args:
        hosts: How many; 0: unknown.
        ranks: How many.
        devices: As `own_devices` names them.
        runtime: As for `wanted`.
    """
    if ranks == 1 or not hosts:
        return ""
    if "GPU" in devices and (carrier := runtime.get("GPU_OPERATIONS", "auto")) != "host":
        return "NCCL" if carrier == "nccl" else ""  # where all ranks can, which they find out
    carrier = runtime.get("CPU_OPERATIONS", "auto")
    if carrier == "mpi":
        return "MPI"
    if hosts > 1:
        return "TCP between hosts"
    shared = carrier in ("auto", "shm") and runtime.get("SHARED_MEMORY", "1") == "1"
    return "shared memory" if shared else "TCP"
