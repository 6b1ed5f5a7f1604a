"""RayExecutor: Horovod's class, on tfring."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfring.integration import interfaces
from tfring.ray.data import split
from tfring.ray.elastic import ElasticRayExecutor
from tfring.ray.placement import Placement, shape_of
from tfring.ray.settings import (
    ELASTIC_SECONDS,
    PLACEMENT_SECONDS,
    TIMEOUT_SECONDS,
    Settings,
    refuse,
    resources,
)
from tfring.ray.static_job import StaticJob


class RayExecutor:
    """A job of tfring on a Ray cluster. Used by one thread.

    Workers are Ray actors. They live from `start` to `shutdown`, and keep what their functions
    leave in memory. A `with` statement calls `shutdown` at its end. With `min_workers` the job is
    elastic: its workers live from the beginning of a `run` to its end, and come and go with Ray's
    nodes.

    Args:
        settings: the result of `create_settings`; None: its defaults.
        num_workers: the number of workers, on any hosts.
        num_hosts: the number of hosts, instead of `num_workers`.
        num_workers_per_host: the number of workers on each of these; default 1.
        cpus_per_worker: CPUs that Ray reserves for a worker.
        use_gpu: whether workers get GPUs.
        gpus_per_worker: GPUs that Ray reserves for a worker; default 1.
        use_current_placement_group: within an actor or a task that is in a placement group, put the
            workers into that group instead of a new one.
        min_workers: makes the job elastic: with fewer workers training waits.
        max_workers: elastic jobs only: the most workers; None: as many as fit.
        reset_limit: elastic jobs only: the most changes of the workers; None: no limit.
        cooldown_range: elastic jobs only: seconds that a node is not used after a failure, more
            each time.
        elastic_timeout: elastic jobs only: the most seconds with too few workers.
        override_discovery: elastic jobs only: use all nodes of Ray; otherwise those of
            `settings.discovery`.
        placement_group_strategy: Ray's, with `num_workers`: "PACK" (the default), "SPREAD",
            "STRICT_PACK" or "STRICT_SPREAD".
        num_slots: Horovod's older name for `num_workers_per_host`.
        cpus_per_slot: Horovod's older name for `cpus_per_worker`.
        gpus_per_slot: Horovod's older name for `gpus_per_worker`.

    Raises:
        ValueError: the parameters contradict each other.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = None,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: float | None = None,
        override_discovery: bool = True,
        *,
        placement_group_strategy: str | None = None,
        num_slots: int | None = None,
        cpus_per_slot: float | None = None,
        gpus_per_slot: int | None = None,
    ) -> None:
        per_host = num_workers_per_host if num_slots is None else num_slots
        gpus = gpus_per_worker if gpus_per_slot is None else gpus_per_slot
        cpus = cpus_per_worker if cpus_per_slot is None else cpus_per_slot
        self.settings = settings or Settings()
        self._use_current = use_current_placement_group
        self._job: StaticJob | None = None
        self._elastic: ElasticRayExecutor | None = None
        self._object: Callable[[], Any] | None = None  # makes a worker's object, in an elastic job
        self._resources = resources(cpus, use_gpu, gpus)
        if min_workers is None:
            refuse(
                "is for elastic jobs only. Give min_workers, too",
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=cooldown_range,
                elastic_timeout=elastic_timeout,
                override_discovery=None if override_discovery else False,
            )
            self._shape = shape_of(num_workers, num_hosts, per_host, placement_group_strategy)
            return
        refuse(
            f"is not for elastic jobs. Leave it out, or min_workers={min_workers}",
            num_hosts=num_hosts,
            num_workers_per_host=per_host,
            placement_group_strategy=placement_group_strategy,
        )
        self._elastic = ElasticRayExecutor(
            self.settings,
            use_gpu=use_gpu,
            cpus_per_slot=cpus,
            gpus_per_slot=gpus,
            override_discovery=override_discovery,
            min_workers=min_workers,
            max_workers=max_workers,
            num_workers=num_workers,
            reset_limit=reset_limit,
            cooldown_range=cooldown_range,
            elastic_timeout=elastic_timeout,
        )

    @staticmethod
    def create_settings(
        timeout_s: float = TIMEOUT_SECONDS,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = PLACEMENT_SECONDS,
        nics: str | Sequence[str] | None = None,
        verbose: int | bool = 1,
        elastic_timeout: float = ELASTIC_SECONDS,
    ) -> Settings:
        """Returns settings for the executors.

        Args:
            timeout_s: seconds that ranks wait for each other in `init`.
            ssh_identity_file: accepted for Horovod scripts; tfring needs no ssh on Ray.
            ssh_str: written to `ssh_identity_file`, as in Horovod.
            placement_group_timeout_s: seconds that `start` waits for places in the cluster.
            nics: network interfaces to use between hosts.
            verbose: accepted for Horovod scripts; no effect.
            elastic_timeout: elastic jobs only: the most seconds with too few workers.
        """
        del verbose
        if ssh_str and ssh_identity_file and not os.path.exists(ssh_identity_file):
            Path(ssh_identity_file).touch(mode=0o600)
            Path(ssh_identity_file).write_text(ssh_str, encoding="utf-8")
        return Settings(
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            elastic_timeout=elastic_timeout,
            nics=interfaces(nics),
        )

    @property
    def workers(self) -> list[Any]:
        """The actors, by rank."""
        return [] if self._job is None else self._job.workers

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the workers, and waits until they run.

        Args:
            executable_cls: a class; each worker makes an object of it, which `execute` passes on.
            executable_args: its arguments.
            executable_kwargs: its keyword arguments.
            extra_env_vars: variables for all workers.

        Raises:
            TimeoutError: Ray had no place for the workers in time.
            RuntimeError: a rank could not make the object, or there are workers already.
        """
        if self._job is not None:
            raise RuntimeError("this executor has started already: call shutdown() first")
        args, kwargs = list(executable_args or ()), dict(executable_kwargs or {})
        if self._elastic is not None:
            make = executable_cls
            self._object = None if make is None else functools.partial(make, *args, **kwargs)
            self._elastic.start(extra_env_vars)
            return
        seconds = self.settings.placement_group_timeout_s
        placement = Placement(self._shape, self._resources, seconds, use_current=self._use_current)
        job = StaticJob(
            self.settings, self._resources, placement, self._shape, extra_env_vars or {}
        )
        if executable_cls is not None:
            try:
                job.start_executable(executable_cls, args, kwargs)
            except BaseException:
                job.shutdown()
                raise
        self._job = job

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], object]] | None = None,
        *,
        datasets: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on all workers and waits for all of them.

        Args:
            fn: it calls `hvd.init` itself.
            args: its arguments.
            kwargs: its keyword arguments.
            callbacks: elastic jobs only: as in `ElasticRayExecutor.run`.
            datasets: datasets of Ray Data by name; `tfring.ray.dataset_shard` gives each rank its
                part.

        Returns:
            The function's results, by rank.

        Raises:
            RuntimeError: it failed on a rank, which the message names with the traceback; the
                rank's exception is the cause. All ranks have then left their job, and another `run`
                begins a new one, unless the process of a rank is gone.
        """
        if self._elastic is not None:
            if datasets:
                raise NotImplementedError(
                    "RayExecutor.run(datasets=...) splits for a fixed number of ranks. In an "
                    "elastic job, read the data in the function (see `tfring help data`)"
                )
            return self._elastic.run(
                functools.partial(fn, *(args or ()), **(kwargs or {})), callbacks
            )
        _refuse_callbacks(callbacks)
        return self._running().results(self.run_remote(fn, args, kwargs, datasets=datasets))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        datasets: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on all workers; returns Ray's references to the results, by rank.

        `ray.get` of a reference raises the rank's exception. Call `shutdown` after that.

        Args:
            fn: it calls `hvd.init` itself.
            args: its arguments.
            kwargs: its keyword arguments.
            datasets: datasets of Ray Data by name; `tfring.ray.dataset_shard` gives each rank its
                part.
        """
        job = self._running()
        own = split(datasets or {}, job.nodes)
        return job.start_all("call", fn, list(args or ()), dict(kwargs or {}), own=own)

    def execute(
        self,
        fn: Callable[[Any], Any],
        callbacks: Sequence[Callable[[Any], object]] | None = None,
    ) -> list[Any]:
        """Calls a function with each worker's object of `executable_cls`, or None.

        Args:
            fn: the function.
            callbacks: elastic jobs only: as in `ElasticRayExecutor.run`.

        Returns:
            The function's results, by rank.

        Raises:
            RuntimeError: as in `run`.
        """
        if self._elastic is not None:
            return self._elastic.run(functools.partial(_with_object, fn, self._object), callbacks)
        _refuse_callbacks(callbacks)
        job = self._running()
        return job.results(job.start_all("execute", fn))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls a function with the object of rank 0; returns its result.

        Args:
            fn: the function.

        Raises:
            RuntimeError: as in `run`.
        """
        return self._running().result_of_first(fn)

    def shutdown(self) -> None:
        """Ends the workers and frees their places. May be called twice."""
        job, self._job = self._job, None
        if job is not None:
            job.shutdown()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def _running(self) -> StaticJob:
        if self._elastic is not None:
            raise NotImplementedError(
                "the workers of an elastic job live only during a run. Use run() or execute()"
            )
        if self._job is None:
            raise RuntimeError("this executor has no workers. Call start() first")
        return self._job


def _refuse_callbacks(callbacks: Sequence[Any] | None) -> None:
    if callbacks:
        raise NotImplementedError(
            "RayExecutor: callbacks=... is for elastic jobs, with min_workers. Without them, "
            "return the values from the function, or print them"
        )


def _with_object(fn: Callable[[Any], Any], make: Callable[[], Any] | None) -> Any:
    """Makes a worker's object, and calls a function with it."""
    return fn(None if make is None else make())
