"""ElasticRayExecutor: Horovod's class for jobs whose workers come and go, on tfring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfring.integration import NO_LIMIT, ElasticOptions, interfaces
from tfring.ray.elastic_job import ElasticJob
from tfring.ray.nodes import Discovered, RayHostDiscovery
from tfring.ray.settings import ELASTIC_SECONDS, Settings, resources

# Arguments of Horovod's create_settings without effect here.
_WITHOUT_EFFECT = {
    "verbose",
    "ssh_port",
    "extra_mpi_args",
    "tcp_flag",
    "binding_args",
    "output_filename",
    "run_func_mode",
    "timestamp_output",
}


class ElasticRayExecutor:
    """An elastic job of tfring whose workers follow the nodes of a Ray cluster.

    The program that calls `run` holds the job's coordinator, and runs on a node of the cluster.
    Used by one thread.

    Args:
        settings: the result of `create_settings`; None: its defaults.
        use_gpu: whether workers get GPUs.
        cpus_per_slot: CPUs that Ray reserves for a worker.
        gpus_per_slot: GPUs that Ray reserves for a worker; default 1.
        env_vars: variables for all workers.
        override_discovery: use all nodes of Ray; otherwise those of `settings.discovery`.
        min_workers: with fewer workers training waits; None: as in the settings.
        max_workers: the most workers; None: as in the settings.
        num_workers: workers at the start; None: `min_workers`.
        reset_limit: the most changes of the workers; None: as in the settings.
        cooldown_range: seconds that a node is not used after a failure, more each time; None: as in
            the settings.
        elastic_timeout: the most seconds with too few workers; None: as in the settings.

    Raises:
        ValueError: the parameters contradict each other.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
        *,
        min_workers: int | None = None,
        max_workers: int | None = None,
        num_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: float | None = None,
    ) -> None:
        self.settings = settings = settings or self.create_settings()
        self._resources = resources(cpus_per_slot, use_gpu, gpus_per_slot)
        discovery = None if override_discovery else settings.discovery
        if discovery is None and not override_discovery:
            raise ValueError("override_discovery=False: set settings.discovery first")
        self._discovery = discovery or RayHostDiscovery.of(self._resources)
        least = settings.min_num_proc if min_workers is None else min_workers
        most = settings.max_num_proc if max_workers is None else max_workers
        begin = least if num_workers is None else num_workers
        if not 1 <= least <= begin <= (NO_LIMIT if most is None else most):
            raise ValueError(
                f"min_workers={least}, num_workers={begin}, max_workers={most}: num_workers, with "
                "which the job begins, must be from min_workers to max_workers, all 1 or more"
            )
        limit = settings.reset_limit if reset_limit is None else reset_limit
        self._elastic = ElasticOptions(
            np=begin,
            min_np=least,
            max_np=NO_LIMIT if most is None else most,
            timeout=settings.elastic_timeout if elastic_timeout is None else elastic_timeout,
            reset_limit=-1 if limit is None else limit,
            cooldown=settings.cooldown_range if cooldown_range is None else cooldown_range,
        )
        self._variables = dict(env_vars or {})
        self._started = False

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = ELASTIC_SECONDS,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: str | Sequence[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        **other: Any,
    ) -> Settings:
        """Returns settings for this executor.

        Args:
            min_num_proc: with fewer workers training waits.
            max_num_proc: the most workers; None: as many as fit.
            reset_limit: the most changes of the workers; None: no limit.
            elastic_timeout: the most seconds with too few workers.
            timeout_s: seconds that the workers of the first generation wait for each other.
            ssh_identity_file: accepted for Horovod scripts; tfring needs no ssh on Ray.
            nics: network interfaces to use between hosts.
            min_np: Horovod's older name for `min_num_proc`.
            max_np: Horovod's older name for `max_num_proc`.
            cooldown_range: seconds that a node is not used after a failure, more each time.
            **other: other parameters of Horovod, such as verbose; they have no effect.

        Raises:
            TypeError: Horovod has no such parameter.
        """
        del ssh_identity_file
        if unknown := sorted(other.keys() - _WITHOUT_EFFECT):
            raise TypeError(
                f"create_settings() has no parameter {', '.join(unknown)}. Set numbers of workers "
                "by min_num_proc and max_num_proc, or by min_workers and max_workers of the "
                "executor"
            )
        return Settings(
            timeout_s=timeout_s,
            elastic_timeout=elastic_timeout,
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            cooldown_range=cooldown_range,
            nics=interfaces(nics),
        )

    def start(self, extra_env_vars: Mapping[str, str] | None = None) -> None:
        """Only keeps the variables: `run` starts the workers.

        Args:
            extra_env_vars: variables for all workers, besides `env_vars`.
        """
        self._variables.update(extra_env_vars or {})
        self._started = True

    def run(
        self,
        worker_fn: Callable[[], Any],
        callbacks: Sequence[Callable[[Any], object]] | None = None,
    ) -> list[Any]:
        """Calls a function on each worker, and waits until the training is over.

        Args:
            worker_fn: it calls `hvd.init`, and `hvd.elastic.run` inside.
            callbacks: called in this thread, with each dictionary that rank 0 sent by
                `tfring.ray.ray_logger.log`. An exception in one ends the job.

        Returns:
            The function's results, by rank in the last generation.

        Raises:
            RuntimeError: the job failed; the exception of the last worker that failed is the cause.
        """
        if not self._started:
            raise RuntimeError("call start() first")
        discovered = Discovered(self._discovery)
        job = ElasticJob(
            settings=self.settings,
            resources=self._resources,
            elastic=self._elastic,
            discovered=discovered,
            variables=self._variables,
            callbacks=callbacks or (),
        )
        return job.run(worker_fn)

    def shutdown(self) -> None:
        """Does nothing: the workers end with `run`."""
