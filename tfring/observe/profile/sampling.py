"""Samples the Python stacks of the ranks of this host for some seconds, all ranks at once."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tfring.observe.explain.places import Frame, parse_threads
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record
from tfring.observe.recorder.stacks import OWN
from tfring.observe.recorder.take_stacks import NO_STACKS, take_stacks

# py-spy may take this much longer than it samples.
_PY_SPY_SECONDS = 60.0
# A rank must answer within this time.
_ANSWER_SECONDS = 2.0
# The name of a thread in py-spy's output.
_THREAD = re.compile(r'^Thread \S+ "(.*)"$')


class Sample(NamedTuple):
    """A stack, and for how many seconds it stands."""

    stack: tuple[Frame, ...]  # the innermost call first
    seconds: float


@dataclass
class Profile:
    """What one rank did.

    Attributes:
        threads: The samples of each thread, by its name; without threads of tfring.
        failure: Why there are none; "": there are.
        spied: Whether py-spy took them.
    """

    threads: dict[str, list[Sample]] = field(default_factory=dict)
    failure: str = ""
    spied: bool = False


def find_py_spy() -> str | None:
    """Returns the program py-spy; None: it is not installed."""
    return shutil.which("py-spy")


def sample(records: Mapping[int, Record], seconds: float, rate: float) -> dict[int, Profile]:
    """Samples ranks with py-spy if it is installed and may trace them, else by asking them.

    A rank that is asked answers when its code gives up the interpreter's lock. If it computes in
    Python, the line may be another one than that which takes the time.

    Args:
        records: Of the ranks, by rank.
        seconds: For how long.
        rate: Samples per second.
    """
    found = {rank: Profile() for rank in sorted(records)}
    program = find_py_spy()

    def take(rank: int) -> None:
        found[rank] = _of_rank(records[rank], program, seconds, rate)

    threads = [threading.Thread(target=take, args=(rank,)) for rank in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _of_rank(record: Record, program: str | None, seconds: float, rate: float) -> Profile:
    if program is not None and process_state(record.header) == "running":
        threads = _by_py_spy(program, record.pid, seconds, rate)
        if threads:
            return Profile(threads, spied=True)
    return _by_asking(record, seconds, rate)


def _by_py_spy(program: str, pid: int, seconds: float, rate: float) -> dict[str, list[Sample]]:
    """Returns the samples of each thread; {} if py-spy may not trace the process, or fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        command = [program, "record", "--pid", str(pid), "--idle", "--threads", "--full-filenames"]
        command += ["--duration", f"{max(1, round(seconds))}", "--rate", f"{max(1, round(rate))}"]
        command += ["--format", "speedscope", "--output", str(file)]
        try:
            subprocess.run(
                command, capture_output=True, timeout=seconds + _PY_SPY_SECONDS, check=True
            )
            return parse_samples(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, subprocess.SubprocessError):
            return {}


def parse_samples(document: Mapping[str, Any]) -> dict[str, list[Sample]]:
    """Returns the samples of each thread from a document of speedscope, as py-spy writes it."""
    frames = [
        Frame(one["file"], str(one["line"]), one["name"]) for one in document["shared"]["frames"]
    ]
    found = {}
    for profile in document["profiles"]:
        head = _THREAD.match(profile["name"])
        name = head[1] if head else profile["name"]
        if not name.startswith(OWN):
            pairs = zip(profile["samples"], profile["weights"], strict=True)
            # Without the outermost frame, which is the thread.
            found[name] = [
                Sample(tuple(frames[i] for i in reversed(stack) if frames[i].path), weight)
                for stack, weight in pairs
            ]
    return found


def _by_asking(record: Record, seconds: float, rate: float) -> Profile:
    profile = Profile(defaultdict(list))
    parsed = functools.lru_cache(maxsize=1024)(parse_threads)
    began = last = time.monotonic()
    end = began + seconds
    while last < end:
        time.sleep(max(0.0, min(last + 1 / rate, end) - time.monotonic()))
        text = take_stacks({0: record}, _ANSWER_SECONDS, by_signal=False)[0]
        now = time.monotonic()
        if text.startswith(NO_STACKS):
            profile.failure = text.removeprefix(NO_STACKS)
            if process_state(record.header) != "running":
                break
        else:
            for name, frames in parsed(text).items():
                profile.threads[name].append(Sample(tuple(frames), now - last))
        last = now
    if profile.threads:
        profile.failure = ""
    return profile
