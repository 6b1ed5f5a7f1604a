"""Where the ranks of a job spend their time, from samples of their stacks."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tfring.observe.explain.places import Frame, parse_threads
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record
from tfring.observe.recorder.stacks import MAIN, NO_STACKS, OWN, take_stacks
from tfring.runtime.texts.frames import library
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

# py-spy may take this much longer than it samples.
_PY_SPY_SECONDS = 60.0
# The name of a thread in py-spy's output.
_THREAD = re.compile(r'^Thread \S+ "(.*)"$')
# A rank must answer within this time.
_ANSWER_SECONDS = 2.0
# Ranks differ if their shares on a line differ by this much.
_MUCH = 0.2
_NOWHERE = "no line of the program"
_ON_A_THREAD = "on a thread of TensorFlow's"


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

    def take(rank: int) -> None:
        found[rank] = _of_rank(records[rank], seconds, rate)

    threads = [threading.Thread(target=take, args=(rank,)) for rank in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _of_rank(record: Record, seconds: float, rate: float) -> Profile:
    if process_state(record.header) == "running":
        threads = _by_py_spy(record.pid, seconds, rate)
        if threads:
            return Profile(threads, spied=True)
    return _by_asking(record, seconds, rate)


def _by_py_spy(pid: int, seconds: float, rate: float) -> dict[str, list[Sample]]:
    """Returns the samples of each thread; {} if py-spy is missing, may not trace it, or fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        command = ["py-spy", "record", "--pid", str(pid), "--idle", "--threads", "--full-filenames"]
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
        text = take_stacks({0: record}, _ANSWER_SECONDS)[0]
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


class Line(NamedTuple):
    """A line of the program.

    Attributes:
        place: As "on_train_batch_end (train.py:13)".
        inside: The library that it called, as "in keras"; "" for its own code.
    """

    place: str
    inside: str

    def text(self) -> str:
        """Returns "train (train.py:20), in keras"."""
        return f"{self.place}, {self.inside}" if self.inside else self.place


Shares = Mapping[Line, float]


def find_shares(profile: Profile) -> dict[Line, float]:
    """Returns the share of the time that a rank spends on each line, the largest first.

    These are lines of the main thread, and lines that TensorFlow calls on its own threads, as
    generators of input.
    """
    found: dict[Line, float] = defaultdict(float)
    for name, samples in profile.threads.items():
        for stack, seconds in samples:
            line = _line(stack, name == MAIN)
            if line is not None:
                found[line] += seconds
    total = sum(seconds for _, seconds in profile.threads.get(MAIN, ()))
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {line: seconds / total for line, seconds in ordered} if total else {}


def _line(stack: Sequence[Frame], main: bool) -> Line | None:
    here = next((i for i, frame in enumerate(stack) if frame.users), None)
    if not main:
        # Threads of the program's own may wait for ever and harm nobody.
        if here is None or stack[-1].path.endswith("/threading.py"):
            return None
        return Line(stack[here].text(), _ON_A_THREAD)
    if here is None:
        return Line(_NOWHERE, "")
    called = [library(frame.path, frame.function) for frame in stack[:here]]
    package = next(filter(None, reversed(called)), "")
    return Line(stack[here].text(), f"in {package}" if package else "")


def describe_difference(found: Mapping[int, Shares]) -> str:
    """Returns a sentence on where some ranks spend much more time than the others.

    Ranks that wait for a slow one do so in TensorFlow, Keras or tfring, so a line of the program's
    own code says more.

    Args:
        found: The shares of at least two ranks.
    """
    best: tuple[bool, float, Line, list[int]] | None = None
    for line in {line for own in found.values() for line in own}:
        ordered = sorted(found, key=lambda rank: found[rank].get(line, 0.0))
        values = [found[rank].get(line, 0.0) for rank in ordered]
        # Those behind the widest gap, at most half of all.
        gap, at = max(
            (values[i] - values[i - 1], i) for i in range((len(ordered) + 1) // 2, len(ordered))
        )
        own = line.inside in ("", _ON_A_THREAD)
        if gap < _MUCH or line.inside == "in tfring" or line.place == _NOWHERE:
            continue
        if best is None or (own, gap) > best[:2]:
            best = own, gap, line, sorted(ordered[at:])
    if best is None:
        return "The ranks spend their time on the same lines."
    _, _, line, slow = best
    return _sentence(line, slow, found)


def _sentence(line: Line, slow: list[int], found: Mapping[int, Shares]) -> str:
    others = [rank for rank in found if rank not in slow]
    least = min(found[rank][line] for rank in slow)
    most = max(found[rank].get(line, 0.0) for rank in others)
    who = upper_first(ranks_text(slow))
    spend = "spends" if len(slow) == 1 else "spend at least"
    rest = ranks_text(others) if len(others) == 1 else "the others at most"
    return (
        f"{who} {spend} {100 * least:.0f} % of the time in {line.text()}; "
        f"{rest} {100 * most:.0f} %."
    )


def make_document(name: str, profiles: Mapping[int, Profile]) -> dict[str, Any]:
    """Returns the flame graphs of a job, for JSON.

    First comes one with the main threads of all ranks side by side, then one for each rank, then
    those of other threads that have run code of the program.
    """
    frames: dict[Frame, int] = {}

    def graph(title: str, samples: Iterable[Sample], below: Frame | None = None) -> dict[str, Any]:
        stacks, weights = [], []
        for stack, seconds in samples:
            outermost = (*reversed(stack),) if below is None else (below, *reversed(stack))
            stacks.append([frames.setdefault(frame, len(frames)) for frame in outermost])
            weights.append(round(seconds, 6))
        return {
            "type": "sampled",
            "name": title,
            "unit": "seconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": stacks,
            "weights": weights,
        }

    together = graph("all ranks", ())
    graphs = [together]
    others = []
    for rank, profile in profiles.items():
        title = f"rank {rank}"
        main = profile.threads.get(MAIN, [])
        part = graph(title, main, Frame("", "0", title))
        for key in ("samples", "weights"):
            together[key] += part[key]
        together["endValue"] += part["endValue"]
        graphs.append(graph(title, main))
        for thread, samples in profile.threads.items():
            if thread != MAIN and any(frame.users for one in samples for frame in one.stack):
                others.append(graph(f"{title}, thread {thread}", samples))
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "tfring",
        "activeProfileIndex": 0,
        "shared": {"frames": [_described(frame) for frame in frames]},
        "profiles": graphs + others,
    }


def _described(frame: Frame) -> dict[str, Any]:
    if not frame.path:
        return {"name": frame.function}
    return {"name": frame.function, "file": frame.path, "line": int(frame.line)}
