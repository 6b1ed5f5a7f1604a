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
    ("counter", "steps_total", "Training steps begun, or the one that `fit` or the program marks."),
    ("gauge", "epoch", "The epoch of `fit`, from 1 on; 0: unknown."),
    ("gauge", "epochs", "How many epochs this `fit` has; 0: unknown."),
    ("gauge", "loss", "The loss of `fit` on this rank, of the epoch so far; NaN: unknown, too."),
    ("counter", "samples_total", "Samples trained on, where `fit` or the program says so."),
    (
        "counter",
        "input_wait_seconds_total",
        "Time spent waiting for input, where `fit` or the program says so.",
    ),
    (
        "counter",
        "callback_seconds_total",
        "Time that Keras' callbacks took after each batch of `fit`.",
    ),
)
_COUNTERS = (
    ("calls", "Collective calls of this rank that have ended."),
    ("failed_calls", "Of these, those that ended with an error."),
    ("unseen_calls", "Calls that the record lost before a scrape: histograms lack them."),
    ("tensor_bytes", "Bytes of the tensors of calls that have ended well."),
    ("sent_bytes", "Bytes that this rank has sent to other ranks."),
    ("plans", "Plans that this rank has run; a plan is one call or several that were fused."),
    ("tensors", "Tensors in these plans."),
    ("cache_hits", "Requests that were sent as a number of the response cache."),
    ("locks", "Locks of the schedule that have begun."),
    ("lock_rounds", "Rounds of repeating allreduces that were run in locks."),
    ("observed_steps", "Steps over of which the record still had all calls at a scrape."),
    ("communication_seconds", "Time with a gradient bucket under way, of observed steps."),
    (
        "exposed_communication_seconds",
        "Of observed steps, from the last gradient until all were reduced.",
    ),
    ("waiting_seconds", "Of that, time in which other ranks had not asked for a bucket yet."),
    ("gradient_bytes", "Bytes of the gradients of observed steps."),
)
_GAUGES = (
    ("job_ranks", "Number of ranks of the job."),
    ("start_time_seconds", "When init was called, in seconds since 1970."),
    ("open_calls", "Collective calls that have not ended."),
    ("oldest_open_call_age_seconds", "For how long the oldest of these has not; 0: there is none."),
)
_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "collective_duration_seconds": ("Of calls: from the call to its end.", ("kind",), SECONDS),
    "negotiation_duration_seconds": (
        "Of calls: from the call until all ranks have asked and the plan is here.",
        ("kind",),
        SECONDS,
    ),
    "plan_duration_seconds": (
        "Of plans: from their first byte to their end.",
        ("kind",),
        SECONDS,
    ),
    "plan_size_bytes": ("Of plans: the bytes of their tensors.", (), BYTES),
    "plan_tensors": ("Of plans: their tensors, several where calls were fused.", (), TENSORS),
    "step_duration_seconds": (
        "From the end of a step's communication to that of the next.",
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
            "What the others have waited for this rank; only rank 0 knows it, of all ranks.",
        ),
        Family(
            "counter",
            "tfring_last_to_ask_total",
            "How often this rank asked last for a tensor; only rank 0 knows it, of all ranks.",
        ),
        Family("counter", "tfring_events_total", "Events in the record, by type.", ("type",)),
        Family(
            "counter", "tfring_wakeups_total", "How often the runtime's threads woke.", ("thread",)
        ),
        Family(
            "counter",
            "tfring_control_frames_total",
            "Control frames, sent or received, heartbeats apart.",
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
