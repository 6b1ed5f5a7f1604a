"""The ranks of one pod, as part of a job that has several."""

from __future__ import annotations

import dataclasses
import socket

from tfring.job.environments.kubernetes import Pod
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.job_options import JobOptions, Share


def slots_of(pod: Pod) -> list[Slot]:
    """Returns the ranks of a pod."""
    return [
        Slot(
            rank=pod.number * pod.slots + local,
            host=socket.gethostname(),
            local_rank=local,
            local_size=pod.slots,
            cross_rank=pod.number,
            cross_size=pod.pods,
        )
        for local in range(pod.slots)
    ]


def shared(job: JobOptions, pod: Pod, secret: str | None, job_id: str | None) -> JobOptions:
    """Returns a job whose ranks in other pods know what those of this one do.

    The secret is what all pods have been given; without one it raises UsageError. The id is what
    the user calls the job, if anything.
    """
    if secret is None:
        raise UsageError(
            f"{pod.source} has {pod.pods} pods, and this one (number {pod.number}) has no secret "
            "by which the others could know it: give all of them TFRING_SECRET from a Secret, as "
            "`tfring help kubernetes` shows"
        )
    share = Share(pod.size, pod.address, pod.port)
    return dataclasses.replace(job, share=share, secret=secret, job_id=job_id or pod.job_id)
