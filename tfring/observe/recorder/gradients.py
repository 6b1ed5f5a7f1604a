"""Finds the calls that reduce gradients, and the training step of each.

A step is one reduction of the gradients of an optimizer or a tape: the n-th call of each of its
buckets. Two optimizers that take turns have steps of their own: a GAN has two for each batch.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np

from tfring.observe.recorder.layout import KINDS, CallFlags

Array = np.ndarray[Any, Any]
# Which steps are counted together: the process set, and the name of the reduction.
Series = tuple[int, str]

# The ranks compare layouts in other calls, too (broadcast_variables, and grouped_allreduce of
# several dtypes), which have the BUCKET flag like the gradients. So the name decides: what
# optimizers and tapes reduce is called like this, then the bucket, then a part of it.
GRADIENTS = ("optimizer", "keras2_optimizer", "tf1_optimizer", "aggregation", "tape")
_BUCKET = re.compile(rf"(tfring\.(?:{'|'.join(GRADIENTS)})\..*?)\.\d+((?:\.[a-z_]\w*)*)")
# What optimizers reduce besides gradients, in the same way.
NO_GRADIENTS = (".finite", ".scale", ".overwrite")
# Without tf.function the calls of all tapes take turns with this many numbers, the last part of the
# reduction's name. They begin with 0 again when the ranks have joined, or a step has failed.
EAGER_NAMES = 16
_EAGER = re.compile(r"(tfring\.tape\.eager\..+)\.(\d+)")
# With shard_states=True. No layout is compared in it, so it has no flag.
_SCATTERS = KINDS.index("reducescatter")
_REDUCES = (KINDS.index("allreduce"), _SCATTERS)
# Of sparse gradients such a call tells the ranks how many rows they have. Others that begin with
# its name move the rows afterwards, by a collective that may be another one in each step.
_ROWS = re.compile(rb"(.+)\.\d+\.(?:values|indices|dense)")
_MOVES = (KINDS.index("allgather"), KINDS.index("allreduce"))


class GradientCalls(NamedTuple):
    """The calls that reduce gradients.

    Attributes:
        at: Their positions among the calls.
        series: All series.
        which: Of each call: the position of its series.
        number: Of each call: its step, from 1 on in each series.
        bucket: Of each call: whether it reduces a bucket. Others move rows of sparse gradients
            after a bucket's call.
        leads: Of each call: whether it is the first of its bucket. Others wait for its result.
    """

    at: Array
    series: tuple[Series, ...]
    which: Array
    number: Array
    bucket: Array
    leads: Array


def find_gradient_calls(calls: Array) -> GradientCalls:
    """Returns the calls among `calls`, an array of layout.CALL, that reduce gradients."""
    return _with_rows(calls, _bucket_calls(calls))


def _bucket_calls(calls: Array) -> GradientCalls:
    flagged = (calls["flags"] & int(CallFlags.BUCKET) != 0) | (calls["kind"] == _SCATTERS)
    at = np.flatnonzero(flagged & (calls["invocation"] > 0) & np.isin(calls["kind"], _REDUCES))
    names, name = np.unique(calls["name"][at], return_inverse=True)
    found = [_reduction(each) for each in names.tolist()]
    kept = np.array([one is not None for one in found], dtype=bool)[name]
    at, name = at[kept], name[kept]
    texts = sorted({one[0] for one in found if one is not None})
    # Which of the texts, and which of the eager numbers, or -1, by name.
    text = np.array([texts.index(one[0]) if one else -1 for one in found], dtype=np.int64)[name]
    eager = np.array([one[1] if one else -1 for one in found], dtype=np.int64)[name]
    leads = np.array([one is not None and one[2] for one in found], dtype=bool)[name]
    sets = calls["process_set"][at].astype(np.int64)
    keys, which = np.unique(sets * max(1, len(texts)) + text, return_inverse=True)
    series = tuple((int(key) // len(texts), texts[int(key) % len(texts)]) for key in keys)
    number = calls["invocation"][at].astype(np.int64)
    for one in np.unique(which[eager >= 0]).tolist():
        chosen = (which == one) & (eager >= 0)
        number[chosen] = _eager_numbers(eager[chosen], number[chosen], calls["number"][at][chosen])
    return GradientCalls(at, series, which, number, np.ones(len(at), dtype=bool), leads)


def _with_rows(calls: Array, found: GradientCalls) -> GradientCalls:
    """Adds the calls that move rows, each to the step of the bucket's call before it."""
    if len(found.at) == 0:
        return found
    bucket = calls["flags"] & int(CallFlags.BUCKET) != 0
    others = np.flatnonzero(~bucket & (calls["invocation"] > 0) & np.isin(calls["kind"], _MOVES))
    names, name = np.unique(calls["name"][others], return_inverse=True)
    owners = calls["name"][found.at]
    added, after = [found.at], [np.arange(len(found.at))]
    for position, text in enumerate(names.tolist()):
        rows = _ROWS.fullmatch(text)
        if rows is None:
            continue
        counts = np.flatnonzero(owners == rows[1])
        counts = counts[np.argsort(calls["number"][found.at[counts]])]
        at = others[name == position]
        before = np.searchsorted(calls["number"][found.at[counts]], calls["number"][at]) - 1
        added.append(at[before >= 0])
        after.append(counts[before[before >= 0]])
    of = np.concatenate(after)
    own = np.arange(len(of)) < len(found.at)
    return GradientCalls(
        at=np.concatenate(added),
        series=found.series,
        which=found.which[of],
        number=found.number[of],
        bucket=own,
        leads=own & found.leads[of],
    )


@functools.lru_cache(maxsize=1024)
def _reduction(name: bytes) -> tuple[str, int, bool] | None:
    """Returns a call's reduction, its eager number or -1, and whether it leads its bucket."""
    bucket = _BUCKET.fullmatch(name.decode(errors="replace"))
    if bucket is None or bucket[1].endswith(NO_GRADIENTS):
        return None
    eager = _EAGER.fullmatch(bucket[1])
    leads = not bucket[2]
    return (bucket[1], -1, leads) if eager is None else (eager[1], int(eager[2]), leads)


def _eager_numbers(slot: Array, invocation: Array, call: Array) -> Array:
    """Returns the steps of a series whose reductions take turns with several names.

    Steps are counted in the order of their calls. The first number follows from how often each name
    was used before.
    """
    pairs, step = np.unique(np.stack([slot, invocation]), axis=1, return_inverse=True)
    step = step.reshape(-1)  # NumPy 2.0 returns another shape
    begin = np.full(pairs.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(begin, step, call.astype(np.int64))
    order = np.argsort(begin)
    oldest, times = pairs[:, order[0]].tolist()
    # Names that no call here has: of few calls, their place before or after the oldest says how
    # often they were used; of many, they were not, because the ranks join sooner.
    few = len(order) < EAGER_NAMES
    before = [few * (times if each < oldest else times - 1) for each in range(EAGER_NAMES)]
    for each in np.unique(slot).tolist():
        if each < EAGER_NAMES:
            before[each] = int(invocation[slot == each].min()) - 1
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(1, len(order) + 1)
    numbers: Array = sum(before) + place[step]
    return numbers
