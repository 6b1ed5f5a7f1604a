"""The metrics of a rank: name, type, meaning, labels.

Names follow OpenMetrics: base units, the unit at the end, `_total` on counters. Each metric has the
label `rank`; the other labels have few values: kinds of collectives, events, ranks.
"""

from __future__ import annotations

from typing import NamedTuple

# Upper bounds of the histograms' buckets, without the last one, which has none.
SECONDS = tuple(
    float(f"{digits}e{exponent}") for exponent in range(-4, 2) for digits in (1, 2.5, 5)
)
BYTES = tuple(float(2**exponent) for exponent in range(8, 32, 2))
TENSORS = tuple(float(2**exponent) for exponent in range(11))


class Family(NamedTuple):
    """A metric.

    Attributes:
        type: counter, gauge, histogram or info.
        name: In full, as in a query; a histogram also has `_bucket`, `_sum` and `_count`.
        help: What it counts or measures.
        labels: Besides `rank`.
        bounds: Of a histogram.
    """

    type: str
    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


# Type, name and meaning of what users know of their training.
_TRAINING = (
    (
        "counter",
        "steps_total",
        "Training steps begun, counted by gradient reductions, `fit` or the program.",
    ),
    ("gauge", "epoch", "The epoch of `fit`, from 1 on. 0 if unknown."),
    ("gauge", "epochs", "Number of epochs of this `fit`. 0 if unknown."),
    ("gauge", "loss", "The loss of `fit` on this rank, of the epoch so far. NaN also if unknown."),
    ("counter", "samples_total", "Samples trained on, if `fit` or the program reports them."),
    (
        "counter",
        "input_wait_seconds_total",
        "Time spent waiting for input, if `fit` or the program reports it.",
    ),
    (
        "counter",
        "callback_seconds_total",
        "Time that Keras' callbacks took after each batch of `fit`.",
    ),
)
_COUNTERS = (
    ("calls", "Collective calls of this rank that have ended."),
    ("failed_calls", "Collective calls of this rank that ended with an error."),
    ("unseen_calls", "Calls that the record lost before a scrape. The histograms lack them."),
    ("tensor_bytes", "Bytes of the tensors of calls that have ended well."),
    ("sent_bytes", "Bytes that this rank has sent to other ranks."),
    ("plans", "Plans that this rank has run. A plan is one call, or several fused calls."),
    ("tensors", "Tensors in the plans that this rank has run."),
    ("cache_hits", "Requests that were sent as an id of the response cache."),
    ("locks", "Locks of the schedule that have begun."),
    ("lock_rounds", "Rounds of repeating allreduces that ran in locks."),
    (
        "observed_steps",
        "Finished steps whose calls were all still in the record when it was scraped.",
    ),
    (
        "communication_seconds",
        "Of observed steps: time in which at least one gradient bucket was being reduced.",
    ),
    (
        "exposed_communication_seconds",
        "Of observed steps: time from the last gradient until all are reduced.",
    ),
    (
        "waiting_seconds",
        "Part of the exposed communication time: waiting for other ranks to request a gradient "
        "bucket.",
    ),
    ("gradient_bytes", "Bytes of the gradients of observed steps."),
)
_GAUGES = (
    ("job_ranks", "Number of ranks of the job."),
    ("start_time_seconds", "When init was called, in seconds since 1970."),
    ("open_calls", "Collective calls that have not ended."),
    (
        "oldest_open_call_age_seconds",
        "Age in seconds of the oldest collective call that has not ended. 0 if no call is open.",
    ),
)
_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "collective_duration_seconds": ("Time from a call to its end.", ("kind",), SECONDS),
    "negotiation_duration_seconds": (
        "Time from a call until all ranks have requested it and the plan has arrived.",
        ("kind",),
        SECONDS,
    ),
    "plan_duration_seconds": (
        "Time from a plan's first byte to its end.",
        ("kind",),
        SECONDS,
    ),
    "plan_size_bytes": ("Bytes of the tensors of a plan.", (), BYTES),
    "plan_tensors": ("Number of tensors of a plan: several if calls were fused.", (), TENSORS),
    "step_duration_seconds": (
        "Time from the end of a step's communication to that of the next step.",
        (),
        SECONDS,
    ),
}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(Family(kind, f"tfring_{name}", text) for kind, name, text in _TRAINING),
        Family(
            "info",
            "tfring_job_info",
            "What this process is: always 1.",
            ("training_job", "host", "size", "local_rank", "version"),
        ),
        *(Family("gauge", f"tfring_{name}", text) for name, text in _GAUGES),
        *(Family("counter", f"tfring_{name}_total", text) for name, text in _COUNTERS),
        Family(
            "counter",
            "tfring_waiting_for_rank_seconds_total",
            "Seconds the other ranks have waited for this rank. Rank 0 exports it for every rank.",
        ),
        Family(
            "counter",
            "tfring_last_to_ask_total",
            "How often this rank requested a tensor last. Rank 0 exports it for every rank.",
        ),
        Family("counter", "tfring_events_total", "Events in the record, by type.", ("type",)),
        Family(
            "counter", "tfring_wakeups_total", "How often the runtime's threads woke.", ("thread",)
        ),
        Family(
            "counter",
            "tfring_control_frames_total",
            "Control frames, sent or received, without heartbeats.",
            ("direction",),
        ),
        Family(
            "counter",
            "tfring_heartbeats_total",
            "Control frames that only say that a rank is alive.",
            ("direction",),
        ),
        Family(
            "counter",
            "tfring_unlocks_total",
            "Locks of the schedule that have ended, by what ended them.",
            ("cause",),
        ),
        *(Family("histogram", f"tfring_{name}", *more) for name, more in _HISTOGRAMS.items()),
    )
}
