"""Which rank has sent how much to which."""

from __future__ import annotations

import numpy as np

from tfring.observe.recorder.gradients import Array
from tfring.observe.recorder.job import JobRecords


def traffic(job: JobRecords) -> Array:
    """Returns how many bytes ranks have sent to each other, from row to column.

    Args:
        job: The records of the job. The row of a rank without one is 0. What NCCL has sent is not
            counted.
    """
    found = np.zeros((job.size, job.size))
    for rank, record in job.records.items():
        found[rank] = record.sent
    return found
