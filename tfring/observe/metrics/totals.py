"""Sums over everything that was seen of a record, for counters and histograms."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tfring.observe.metrics.families import FAMILIES
from tfring.observe.metrics.follower import News
from tfring.observe.recorder.layout import KINDS, EventType
from tfring.observe.recorder.steps import Steps

_NANO = 1e-9


class Histogram:
    """How many values fell between bounds, and their sum.

    Args:
        bounds: Upper bounds, ascending; above the last one there is no bound.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self.sum = 0.0

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Adds values of one dimension."""
        places = np.searchsorted(self.bounds, values, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += float(values.sum())


class Totals:
    """Adds up what is new. For one thread at a time.

    Attributes:
        histograms: By name without prefix, then by kind of collective, "" if it has none.
        counters: By name without prefix and ending.
        events: By the type's name.
    """

    def __init__(self) -> None:
        self.histograms: dict[str, dict[str, Histogram]] = {
            family.name.removeprefix("tfring_"): {}
            for family in FAMILIES.values()
            if family.type == "histogram"
        }
        self.counters: dict[str, float] = defaultdict(float)
        self.events: dict[str, int] = {type.name.lower(): 0 for type in EventType}

    def add(self, news: News) -> None:
        """Adds what a look at the record has found."""
        calls, plans = news.ended_calls, news.ended_plans
        self._add("collective_duration_seconds", calls, calls["submitted"], calls["ended"])
        planned = calls[calls["planned"] != 0]
        self._add("negotiation_duration_seconds", planned, planned["submitted"], planned["planned"])
        begun = np.where(plans["started"] != 0, plans["started"], plans["queued"])
        self._add("plan_duration_seconds", plans, begun, plans["ended"])
        self._histogram("plan_size_bytes").add(plans["bytes"].astype(np.float64))
        self._histogram("plan_tensors").add(plans["tensors"].astype(np.float64))
        for number in news.events["type"].tolist():
            self.events[EventType(number).name.lower()] += 1
        self._add_steps(news.steps)

    def _add_steps(self, steps: Steps) -> None:
        self.counters["observed_steps"] += len(steps)
        self.counters["communication_seconds"] += int(steps.communicating.sum()) * _NANO
        self.counters["exposed_communication_seconds"] += int(steps.exposed.sum()) * _NANO
        self.counters["waiting_seconds"] += int(steps.waiting.sum()) * _NANO
        self.counters["gradient_bytes"] += int(steps.bytes.sum())
        known = steps.take(steps.began > 0)
        self._histogram("step_duration_seconds").add((known.end - known.began) * _NANO)

    def _add(self, name: str, entries: Any, begun: Any, ended: Any) -> None:
        seconds = np.maximum(ended - begun, 0) * _NANO
        for number in np.unique(entries["kind"]).tolist():
            self._histogram(name, KINDS[number]).add(seconds[entries["kind"] == number])

    def _histogram(self, name: str, kind: str = "") -> Histogram:
        found = self.histograms[name]
        if kind not in found:
            found[kind] = Histogram(FAMILIES[f"tfring_{name}"].bounds)
        return found[kind]
