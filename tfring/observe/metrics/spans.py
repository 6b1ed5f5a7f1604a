"""Spans of training steps and of slow collectives, for OpenTelemetry.

They go to whatever tracer provider the program has set; without one the API drops them.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import Any

import numpy as np

from tfring.observe.metrics.follower import News, RecordFollower
from tfring.observe.recorder.gradients import Series
from tfring.observe.recorder.layout import KINDS, STATUSES
from tfring.observe.recorder.places import id_of
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.steps import Step
from tfring.version import __version__

_log = logging.getLogger("tfring")

_NANO = 1e-9
PERIOD_SECONDS = 5.0
_CLOSE_SECONDS = 10.0


class SpanExporter:
    """Looks at the record every few seconds and makes spans of what has ended since."""

    def __init__(self, record: str, slow_seconds: float) -> None:
        """Starts a thread that does so until `close`.

        Args:
            record: The file of our record.
            slow_seconds: Collectives that take longer get a span.

        Raises:
            ImportError: There is no opentelemetry-api.
        """
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("tfring", __version__)
        self._follower = RecordFollower(record)
        self._slow = slow_seconds
        self._last: dict[Series, int] = {}  # the newest step that had a span
        # Slow plans of steps that are not over.
        self._held: dict[tuple[Series, int], list[Any]] = defaultdict(list)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfring-spans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Makes spans of all that has ended by now, and ends the thread.

        Does not wait for ever, should the program's tracer provider not return.
        """
        self._done.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._done.wait(PERIOD_SECONDS)
            try:
                self._export(self._follower.look(all_are_over=over), over)
            except (OSError, RecordError) as error:
                _log.warning("there are no more spans of this rank: %s", error)
                return

    def _export(self, news: News, over: bool) -> None:
        wall = news.header["started_wall"] - news.header["started_monotonic"]
        own = {"tfring.rank": news.header["rank"], "tfring.job": id_of(news.header["job"])}
        roots = []
        for plan, of in _slow_plans(news, self._slow):
            if of is None:
                roots.append(plan)
            else:
                self._held[of].append(plan)
        for step in news.steps:
            self._step_span(step, wall, own)
        for key in list(self._held):
            last = self._last.get(key[0])
            if over or (last is not None and last >= key[1]):  # its step has no span
                roots += self._held.pop(key)
        for plan in roots:
            self._plan_span(plan, wall, own, None)

    def _step_span(self, step: Step, wall: int, own: dict[str, Any]) -> None:
        self._last[step.series] = step.number
        begin = step.began or step.first
        span = self._tracer.start_span(
            "tfring step",
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
            start_time=begin + wall,
            attributes={
                **own,
                "tfring.step": step.number,
                "tfring.process_set": step.series[0],
                "tfring.gradients": step.series[1],
                "tfring.gradient_bytes": step.bytes,
                "tfring.communication_seconds": step.communicating * _NANO,
                "tfring.exposed_seconds": step.exposed * _NANO,
                "tfring.waiting_seconds": step.waiting * _NANO,
            },
        )
        for plan in self._held.pop((step.series, step.number), []):
            self._plan_span(plan, wall, own, span)
        span.end(end_time=max(step.end, begin) + wall)

    def _plan_span(self, plan: dict[str, Any], wall: int, own: dict[str, Any], step: Any) -> None:
        parent = self._trace.INVALID_SPAN if step is None else step
        span = self._tracer.start_span(
            f"tfring {plan['kind']}",
            context=self._trace.set_span_in_context(parent),
            start_time=plan["begin"] + wall,
            attributes={
                **own,
                **{
                    f"tfring.{name}": plan[name]
                    for name in ("tensor", "plan", "bytes", "tensors", "members", "process_set")
                },
            },
        )
        if plan["status"]:
            code = self._trace.StatusCode.ERROR
            span.set_status(self._trace.Status(code, STATUSES.get(plan["status"], "unknown")))
        span.end(end_time=plan["end"] + wall)


def _slow_plans(
    news: News, slow_seconds: float
) -> list[tuple[dict[str, Any], tuple[Series, int] | None]]:
    """Returns what a span says of each plan, with the step that it belongs to, if any."""
    plans = news.ended_plans
    begun = np.where(plans["started"] != 0, plans["started"], plans["queued"])
    slow = np.flatnonzero(plans["ended"] - begun > slow_seconds / _NANO).tolist()
    # Their calls have ended with them, or are about to.
    calls = [calls[["sequence", "name"]] for calls in (news.open_calls, news.ended_calls)]
    names = dict(pair for part in calls for pair in part[::-1].tolist()) if slow else {}
    found = []
    for at in slow:
        plan = plans[at]
        span = {
            "kind": KINDS[int(plan["kind"])],
            "begin": int(begun[at]),
            "end": int(plan["ended"]),
            "status": int(plan["status"]),
            "tensor": names.get(int(plan["sequence"]), b"").decode(errors="replace"),
            "plan": int(plan["sequence"]),
            **{name: int(plan[name]) for name in ("bytes", "tensors", "members", "process_set")},
        }
        found.append((span, news.step_of_plan.get(int(plan["sequence"]))))
    return found
