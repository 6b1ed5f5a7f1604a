"""Computes the metrics of a scrape from the record and the runtime's counters."""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfring.observe.metrics.families import FAMILIES
from tfring.observe.metrics.follower import News, RecordFollower
from tfring.observe.recorder.layout import KINDS, EventType
from tfring.observe.recorder.places import id_of
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.steps import Steps
from tfring.runtime import _native
from tfring.version import __version__

_log = logging.getLogger("tfring")

_NANO = 1e-9
# The runtime's counters that are metrics, and their names.
_COUNTERS = {
    "bytes_sent": "sent_bytes",
    "plans": "plans",
    "tensors": "tensors",
    "cache_hits": "cache_hits",
    "locks": "locks",
    "lock_rounds": "lock_rounds",
}
_WAKEUPS = "_wakeups"
_UNLOCKS = "unlocks_"
# The same, with one counter for each direction.
_BY_DIRECTION = {"frames": "control_frames", "heartbeats": "heartbeats"}


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


class RankCollector:
    """The metrics of this rank, for a registry of prometheus_client. Thread-safe.

    Args:
        rank: Ours.
        record: The file of our record; None: there is none, and its metrics are left out.
    """

    def __init__(self, rank: int, record: str | None) -> None:
        self._rank = str(rank)
        self._lock = threading.Lock()
        self._follower = None if record is None else RecordFollower(record)  # guarded by _lock
        self._totals = Totals()  # guarded by _lock

    def describe(self) -> list[Any]:
        """Returns nothing, so that registering the collector does not scrape it."""
        return []

    def collect(self) -> Iterator[Any]:
        """Reads the record and yields prometheus_client's metric families."""
        found = _Families(self._rank)
        with self._lock:
            counters = _native.core.counters()
            news = self._look()
            if news is not None:
                _add_training(found, news)
            for name, ours in _COUNTERS.items():
                if name in counters:
                    found.add(f"tfring_{ours}_total", counters[name])
            _add_labelled(found, counters)
            if news is not None:
                self._totals.add(news)
                _add_state(found, news)
                _add_lateness(found, news)
                _add_totals(found, self._totals, news)
        yield from found.families.values()

    def _look(self) -> News | None:
        if self._follower is None:
            return None
        try:
            return self._follower.look()
        except (OSError, RecordError) as error:
            _log.warning("rank %s: the metrics lack its record: %s", self._rank, error)
            self._follower = None
            return None


class _Families:
    """Samples by metric, as prometheus_client wants them."""

    def __init__(self, rank: str) -> None:
        self.families: dict[str, Any] = {}
        self._rank = rank

    def add(self, name: str, value: Any, *labels: str, rank: str | None = None) -> None:
        """Adds a number or a histogram.

        Args:
            name: In FAMILIES.
            value: The number, or a Histogram; of an info its labels.
            labels: Values of the metric's labels besides `rank`.
            rank: That the number is about; None: this one.
        """
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = _made(name)
        own = [rank or self._rank, *labels]
        if isinstance(value, Histogram):
            family.add_metric(own, *_buckets(value))
        elif isinstance(value, dict):
            family.add_metric(own, value)
        else:
            family.add_metric(own, float(value))


def _made(name: str) -> Any:
    from prometheus_client import core

    family = FAMILIES[name]
    if family.type == "info":
        return core.InfoMetricFamily(name.removesuffix("_info"), family.help, labels=["rank"])
    unit = next((u for u in ("seconds", "bytes") if f"_{u}" in name), "")
    classes = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    return classes[family.type](
        name.removesuffix("_total"), family.help, labels=["rank", *family.labels], unit=unit
    )


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Returns the numbers of values up to each bound, and the sum."""
    from prometheus_client.utils import floatToGoString

    counts = np.cumsum(histogram.counts).tolist()
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, counts), strict=True)), histogram.sum


def _add_labelled(found: _Families, counters: dict[str, int]) -> None:
    for name, count in counters.items():
        if name.endswith(_WAKEUPS):
            found.add("tfring_wakeups_total", count, name.removesuffix(_WAKEUPS))
        elif name.startswith(_UNLOCKS):
            found.add("tfring_unlocks_total", count, name.removeprefix(_UNLOCKS))
    for name, ours in _BY_DIRECTION.items():
        for direction in ("sent", "received"):
            if (key := f"{name}_{direction}") in counters:
                found.add(f"tfring_{ours}_total", counters[key], direction)


def _add_training(found: _Families, news: News) -> None:
    header = news.header
    found.add("tfring_steps_total", max(news.steps_begun, header["step"], 0))
    found.add("tfring_epoch", header["epoch"])
    found.add("tfring_epochs", header["epochs"])
    found.add("tfring_loss", header["loss"] if header["has_loss"] else math.nan)
    found.add("tfring_samples_total", header["samples"])
    found.add("tfring_input_wait_seconds_total", header["input_time"] * _NANO)
    found.add("tfring_callback_seconds_total", header["callback_time"] * _NANO)


def _add_state(found: _Families, news: News) -> None:
    header = news.header
    facts = {
        "training_job": id_of(header["job"]),
        "host": header["host"],
        "size": str(header["size"]),
        "local_rank": str(header["local_rank"]),
        "version": __version__,
    }
    found.add("tfring_job_info", facts)
    found.add("tfring_job_ranks", header["size"])
    found.add("tfring_start_time_seconds", header["started_wall"] * _NANO)
    waits = news.open_calls["submitted"]
    found.add("tfring_open_calls", len(waits))
    oldest = news.read - int(waits.min()) if len(waits) else 0
    found.add("tfring_oldest_open_call_age_seconds", max(0, oldest) * _NANO)


def _add_lateness(found: _Families, news: News) -> None:
    if news.header["rank"] != 0:
        return
    for rank, (late, times) in enumerate(
        zip(news.lateness["late"].tolist(), news.lateness["times"].tolist(), strict=True)
    ):
        found.add("tfring_waiting_for_rank_seconds_total", late * _NANO, rank=str(rank))
        found.add("tfring_last_to_ask_total", times, rank=str(rank))


def _add_totals(found: _Families, totals: Totals, news: News) -> None:
    header = news.header
    values = {
        "calls": header["ended"],
        "failed_calls": header["failed"],
        "tensor_bytes": header["bytes"],
        "unseen_calls": news.unseen_calls,
        **{
            name: totals.counters[name]
            for name in (
                "observed_steps",
                "communication_seconds",
                "exposed_communication_seconds",
                "waiting_seconds",
                "gradient_bytes",
            )
        },
    }
    for name, value in values.items():
        found.add(f"tfring_{name}_total", value)
    for type_name, count in totals.events.items():
        found.add("tfring_events_total", count, type_name)
    for name, by_kind in totals.histograms.items():
        for kind, histogram in by_kind.items():
            found.add(f"tfring_{name}", histogram, *([kind] if kind else []))
