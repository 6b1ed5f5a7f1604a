"""The bytes that each rank sent to each."""

from __future__ import annotations

import numpy as np

from tfring.observe.recorder.gradients import Array
from tfring.observe.recorder.job import JobRecords


def traffic(job: JobRecords) -> Array:
    """Returns the bytes that ranks sent to each other, without NCCL, from row to column.

    The row of a rank without a record is 0.
    """
    found = np.zeros((job.size, job.size))
    for rank, record in job.records.items():
        found[rank] = record.ranks["sent"]
    return found
