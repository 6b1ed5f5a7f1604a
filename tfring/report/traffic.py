"""Which rank sends how much to which, as far as the records tell."""

from __future__ import annotations

import numpy as np

from tfring.recorder.gradients import Array
from tfring.recorder.job import JobRecords
from tfring.recorder.layout import KINDS
from tfring.recorder.reader import Record

# What goes around the ring of all ranks if it is larger than this, in bytes; smaller tensors are
# exchanged directly (see the table of algorithms in ARCHITECTURE.md, with the default settings).
_RING_ABOVE = {"allreduce": 262144, "allgather": 32768, "reducescatter": 32768}


def traffic(job: JobRecords) -> Array:
    """Returns how many bytes ranks have sent to each other, from row to column.

    The sum of each row is what the rank has counted. Which rank got it is not recorded: it is
    spread as the algorithms would for the plans of all ranks that the record still has.

    Args:
        job: The records of the job.
    """
    found = np.zeros((job.size, job.size))
    if job.size == 1:
        return found
    for rank, record in job.records.items():
        ring = _ring_share(record, job.size)
        row = np.full(job.size, (1 - ring) / (job.size - 1))
        row[rank] = 0.0
        row[(rank + 1) % job.size] += ring
        found[rank] = row * record.header["bytes_sent"]
    return found


def _ring_share(record: Record, size: int) -> float:
    """Returns which part of what a rank sends goes to the next rank of the ring."""
    plans = record.raw_plans[record.raw_plans["members"] == size]
    total = ring = 0.0
    for name, above in _RING_ABOVE.items():
        mine = plans[plans["kind"] == KINDS.index(name)]["bytes"].astype(float)
        # An allreduce sends its data twice: to add up, and to tell.
        sent = mine * (2 if name == "allreduce" else 1) * (size - 1) / size
        total += float(sent.sum())
        ring += float(sent[mine > above].sum())
    others = plans[~np.isin(plans["kind"], [KINDS.index(name) for name in _RING_ABOVE])]
    total += float(others["bytes"].sum())
    return ring / total if total else 0.0
