"""Pods of an indexed Job of Kubernetes, plain or made by the Kubeflow Trainer.

All pods have the same number of ranks, and rank 0 is in the pod with index 0. The others find that
pod by its name in a headless service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tfring.job.environments.identity import (
    Identity,
    IdentityError,
    Rendezvous,
    read_int,
    read_optional_int,
    require_all,
)

DEFAULT_PORT = 29400
_INDEX = "JOB_COMPLETION_INDEX"  # Kubernetes sets it in each pod of an indexed Job


class _Names(NamedTuple):
    """Variables that say the same thing in one kind of Job. `pods` is set in that kind only."""

    source: str
    number: str
    pods: str
    slots: str
    address: str
    port: str


_JOB = _Names(
    source="an indexed Job of Kubernetes",
    number=_INDEX,
    pods="TFRING_PODS",
    slots="TFRING_POD_SLOTS",
    address="TFRING_RENDEZVOUS_ADDR",
    port="TFRING_RENDEZVOUS_PORT",
)
# What its torch policy sets, for torchrun, whose option --x can be given as PET_X.
_TRAINER = _Names(
    source="the Kubeflow Trainer",
    number="PET_NODE_RANK",
    pods="PET_NNODES",
    slots="PET_NPROC_PER_NODE",
    address="PET_MASTER_ADDR",
    port="PET_MASTER_PORT",
)


class Pod(NamedTuple):
    """One pod of a job."""

    source: str  # what started it, for messages
    number: int  # which of the job's pods it is, from 0 on
    pods: int  # how many the job has
    slots: int  # how many ranks each pod has
    address: str  # the name of pod 0, where rank 0 listens
    port: int  # the port there

    @property
    def size(self) -> int:
        """How many ranks the job has."""
        return self.pods * self.slots

    @property
    def job_id(self) -> str:
        """Tells the job apart from others. Pods that take the place of failed ones have it, too."""
        return f"pods/{self.address}/{self.port}"


def find_pod(environ: Mapping[str, str]) -> Pod | None:
    """Returns the pod that this process runs in; None outside of a job of several pods.

    The index alone does not count: pods of any indexed Job have one. IdentityError: variables are
    missing, or impossible.
    """
    for names in (_JOB, _TRAINER):
        if not environ.get(names.pods):
            continue
        if names is _TRAINER and not environ.get(_INDEX):
            continue  # variables for a torchrun that is started by hand
        require_all(environ, (names.pods, names.number, names.address), names.source)
        pod = Pod(
            names.source,
            number=read_int(environ, names.number),
            pods=read_int(environ, names.pods, low=1),
            slots=read_optional_int(environ, names.slots, low=1) or 1,
            address=environ[names.address],
            port=read_optional_int(environ, names.port, low=1) or DEFAULT_PORT,
        )
        if pod.number >= pod.pods:
            raise IdentityError(
                f"{names.number} is {pod.number} and {names.pods} is {pod.pods}: the pods of a job "
                f"have the numbers from 0 to {pod.pods - 1}; give {names.pods} the value of "
                "`completions`, or of numNodes"
            )
        return pod
    return None


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity of the only rank of a pod, or None outside of such a job.

    IdentityError: variables are missing, or impossible; or the pod is to have several ranks.
    """
    pod = find_pod(environ)
    if pod is None:
        return None
    if pod.slots > 1:
        raise IdentityError(
            f"{pod.source} gives {pod.slots} ranks to each of {pod.pods} pods, and this process "
            "does not know which of them it is: start the program in the pod with `tfring run "
            "python train.py`, without -np, which starts all of them"
        )
    return Identity(
        source=pod.source,
        rank=pod.number,
        size=pod.size,
        rendezvous=Rendezvous.TCP if pod.size > 1 else Rendezvous.NONE,
        local_rank=0,
        local_size=1,
        address=pod.address,
        port=pod.port,
        job_id=pod.job_id,
        public_seed=pod.job_id,
        several_hosts=pod.pods > 1,
    )
