"""A flame graph of a job as speedscope reads it: https://www.speedscope.app/file-format-schema.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tfring.observe.explain.places import Frame
from tfring.observe.profile.sampling import Profile, Sample
from tfring.observe.recorder.stacks import MAIN


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
