"""Samples the Python stacks of the ranks of this host for some seconds, all ranks at once."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tfring.observe.explain.places import Frame, parse_threads
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record
from tfring.observe.recorder.stacks import NO_STACKS, take_stacks

# A rank must answer within this time.
_ANSWER_SECONDS = 2.0


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
    """

    threads: dict[str, list[Sample]] = field(default_factory=dict)
    failure: str = ""


def sample(records: Mapping[int, Record], seconds: float, rate: float) -> dict[int, Profile]:
    """Samples ranks by asking them.

    A rank answers when its code gives up the interpreter's lock. If it computes in Python, the line
    may be another one than that which takes the time.

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
