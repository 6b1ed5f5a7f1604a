"""The ranks of one pod, as part of a job that has several."""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
from collections.abc import Mapping

from tfring.job.environments import IdentityError
from tfring.job.environments.kubernetes import Pod, find_pod
from tfring.job.security.errors import SecretError
from tfring.job.security.sources import given_secret
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.job_options import JobOptions, Share


def pod_around(options: argparse.Namespace, environ: Mapping[str, str]) -> Pod | None:
    """Returns the pod whose ranks are to be started; None: the options say where ranks are.

    Args:
        options: The parsed options.
        environ: The environment of this process.

    Raises:
        UsageError: The variables of the pod are incomplete or impossible.
    """
    if options.num_proc is not None or options.hosts is not None or options.hostfile:
        return None
    try:
        return find_pod(environ)
    except IdentityError as error:
        raise UsageError(str(error)) from None


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


def shared(job: JobOptions, pod: Pod, job_id: str | None) -> JobOptions:
    """Returns a job whose ranks in other pods know what those of this one do.

    Args:
        job: With the ranks of this pod, and a secret of its own.
        pod: This pod.
        job_id: What the user calls the job, if anything.

    Raises:
        UsageError: There are several pods, and no secret that all of them have.
    """
    if pod.pods == 1:
        return job
    try:
        secret = given_secret(os.environ)
    except SecretError as error:
        raise UsageError(str(error)) from None
    if secret is None:
        raise UsageError(
            f"{pod.source} has {pod.pods} pods, and this one (number {pod.number}) has no secret "
            "by which the others could know it: give all of them TFRING_SECRET from a Secret, as "
            "docs/kubernetes.md shows"
        )
    share = Share(pod.size, pod.address, pod.port)
    return dataclasses.replace(job, share=share, secret=secret, job_id=job_id or pod.job_id)
