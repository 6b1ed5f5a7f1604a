"""OpenTelemetry: steps and slow collectives become spans of the program's tracer provider."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher_tools import wait_until
from made_records import entries, gradient_name

import tfring
from tfring.observe.metrics import spans
from tfring.observe.metrics.follower import News, step_of_plan
from tfring.observe.recorder import layout
from tfring.observe.recorder.steps import steps_of
from tfring.runtime._native import core

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

BEGAN = 1_700_000_000_000_000_000  # the wall clock minus the monotonic one


@pytest.fixture(scope="module")
def provider() -> Any:
    """What the program has set; it can be set once in a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def exported(provider: Any) -> Callable[[], list[Any]]:
    """The spans that have ended during the test."""
    provider.clear()
    return lambda: list(provider.get_finished_spans())


def test_slow_collectives_of_a_job(
    exported: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Everything is slower than a nanosecond; a job of one rank ends what is open by itself."""
    monkeypatch.setenv("TFRING_OTEL_PLAN_SECONDS", "1e-9")
    monkeypatch.setenv("TFRING_RECORD_DIR", str(tmp_path))
    before = time.time_ns()
    tfring.init()
    core.allreduce(np.ones(5), name="of.five", op=1)
    core.broadcast(np.ones(2), name="of.two", root=0)
    tfring.shutdown()
    found = {span.name: span for span in exported()}
    assert set(found) == {"tfring allreduce", "tfring broadcast"}
    span = found["tfring allreduce"]
    assert span.attributes["tfring.tensor"] == "of.five"
    assert span.attributes["tfring.bytes"] == 40
    assert span.attributes["tfring.rank"] == 0
    assert span.parent is None
    assert before < span.start_time < span.end_time < time.time_ns()


def test_fast_collectives_have_none(
    exported: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFRING_OTEL_PLAN_SECONDS", "3600")
    tfring.init()
    core.allreduce(np.ones(5), name="fast", op=1)
    tfring.shutdown()
    assert exported() == []


class Looks:
    """Stands for a record: one look after the other, and then nothing new."""

    def __init__(self, *news: News) -> None:
        self.left = list(news)

    def look(self, all_are_over: bool = False) -> News:
        del all_are_over
        return self.left.pop(0) if self.left else news([], [])


def news(calls: list[dict[str, Any]], plans: list[dict[str, Any]], over: int = 0) -> News:
    """What was found; the steps of so many of the calls are over."""
    made = entries(layout.CALL, calls)
    header = {"rank": 3, "job": "j", "started_wall": BEGAN + 7, "started_monotonic": 7}
    return News(
        header=header,
        ended_calls=made,
        ended_plans=entries(layout.PLAN, plans),
        events=np.zeros(0, layout.EVENT),
        open_calls=made[:0],
        lateness=np.zeros(0, layout.RANK),
        steps=steps_of(made[:over]),
        step_of_plan=step_of_plan(made),
        steps_begun=0,
        unseen_calls=0,
        read=0,
    )


def bucket(step: int, sequence: int, begin: int = 1, end: int = 2) -> dict[str, Any]:
    times = {"submitted": begin, "planned": begin, "ended": end}
    return {
        "name": gradient_name(),
        "flags": int(layout.CallFlags.BUCKET),
        "invocation": step,
        "sequence": sequence,
        **times,
    }


def plan(sequence: int, started: int, ended: int, status: int = 0) -> dict[str, Any]:
    times = {"queued": started - 1, "started": started, "ended": ended}
    return {"sequence": sequence, "status": status, **times}


def test_slow_plans_lie_in_their_steps(
    exported: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 1 is over a look after its plan; plan 2 is fast; plan 3 failed, and its step too."""
    looks = Looks(
        news([bucket(1, 1)], [plan(1, 1000, 3000)]),
        news(
            [bucket(1, 1, 900, 3200), bucket(2, 2, 3900, 4200), bucket(3, 3)],
            [plan(2, 4000, 4100), plan(3, 6000, 9000, status=14)],
            over=2,
        ),
    )
    monkeypatch.setattr(spans, "RecordFollower", lambda path: looks)
    monkeypatch.setattr(spans, "PERIOD_SECONDS", 0.01)
    exporter = spans.SpanExporter("no file", slow_seconds=1e-6)
    assert wait_until(lambda: not looks.left, 60)
    exporter.close()
    found = {
        (s.name, s.attributes.get("tfring.step", s.attributes.get("tfring.plan"))): s
        for s in exported()
    }
    first, second = found["tfring step", 1], found["tfring step", 2]
    slow, failed = found["tfring allreduce", 1], found["tfring allreduce", 3]
    assert len(found) == 4
    assert (first.start_time, first.end_time) == (BEGAN + 900, BEGAN + 3200)
    assert (second.start_time, second.end_time) == (BEGAN + 3200, BEGAN + 4200)
    assert slow.parent is not None
    assert slow.parent.span_id == first.context.span_id
    assert (slow.start_time, slow.end_time) == (BEGAN + 1000, BEGAN + 3000)
    assert failed.parent is None
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.status.description == "Unavailable"
