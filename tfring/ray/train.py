"""A backend for Ray Train, which starts, watches and restarts the workers itself.

from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from tfring.ray import TfringConfig

trainer = TensorflowTrainer(
    train, tensorflow_config=TfringConfig(), scaling_config=ScalingConfig(num_workers=4)
)
result = trainer.fit()
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.backend import Backend, BackendConfig

from tfring.integration import Where, leave, uses_shim
from tfring.ray.forming import fresh_job, here, listen, other_node, prepare, ranks_of_job
from tfring.ray.settings import TIMEOUT_SECONDS

# Time for the ranks to leave the job. One that waits in init does not; Ray Train ends it next.
_LEAVE_SECONDS = 5.0


@dataclass
class TfringConfig(BackendConfig):  # type: ignore[misc]
    """Lets the workers of a trainer of Ray Train form a job of tfring.

    Attributes:
        timeout_s: seconds that ranks wait for each other in `init`.
        nics: network interfaces to use between hosts, as "eth0,eth1"; None: tfring chooses.
    """

    timeout_s: float = TIMEOUT_SECONDS
    nics: str | None = None

    @property
    def backend_cls(self) -> type[TfringBackend]:
        """The class that prepares the workers."""
        return TfringBackend


class TfringBackend(Backend):  # type: ignore[misc]
    """Tells the workers of Ray Train who they are. Ray makes one object of it per process."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: TfringConfig) -> None:
        """Ray Train calls it when new workers run, also after a failure.

        Args:
            worker_group: the workers.
            backend_config: the user's.
        """
        places: list[Where] = worker_group.execute(here)
        nics = backend_config.nics
        meeting = worker_group.execute_single(0, listen, nics, other_node(places))
        job = fresh_job(backend_config.timeout_s, nics, {})
        told = []
        for rank, variables in enumerate(ranks_of_job(places, meeting, job)):
            variables.pop("CUDA_VISIBLE_DEVICES", None)  # Ray Train sets it
            told.append(worker_group.execute_single_async(rank, prepare, variables, uses_shim()))
        ray.get(told)

    def on_shutdown(self, worker_group: Any, backend_config: TfringConfig) -> None:
        """Ray Train calls it before workers end, also for failed workers.

        Args:
            worker_group: the workers.
            backend_config: the user's.
        """
        with contextlib.suppress(RayError):
            leaving = worker_group.execute_async(leave, "")
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)
