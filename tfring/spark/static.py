"""tfring.spark.run: calls a function in tasks of Spark, as the ranks of one job."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from tfring.integration import Output, Slot, Where, gpus_of_node, pickled_call, places, run_job
from tfring.spark.meeting import Task
from tfring.spark.settings import Wishes, function_server
from tfring.spark.stage import Stage, active_context, addresses, wait_for_tasks
from tfring.spark.tunnels import TaskTunnels


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: str | Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls a function on several processes at once, each in a task of Spark, and waits for all.

    The tasks are a barrier stage, which starts as a whole. Executors need an installed tfring.

    Args:
        fn: any callable that cloudpickle can pickle; it calls `hvd.init` itself.
        args: its positional arguments, equal on every rank.
        kwargs: its keyword arguments.
        num_proc: the number of ranks; None: `spark.default.parallelism`.
        start_timeout: seconds for Spark to start the tasks, and for ranks to find each other; None:
            HOROVOD_SPARK_START_TIMEOUT, or 600.
        use_mpi: Horovod's; True is refused, because tfring needs no MPI here.
        use_gloo: Horovod's; no effect.
        extra_mpi_args: Horovod's; refused, too.
        env: variables for all ranks, besides those of this process that TensorFlow and tfring read.
        stdout: the destination of the ranks' output, with their numbers; None: that of this
            process.
        stderr: the same for their error output.
        verbose: 0: hide the output of ranks; 2: print the host of each rank.
        nics: network interfaces to use between hosts, as "eth0,eth1"; None: tfring chooses.
        prefix_output_with_timestamp: whether lines of output begin with the time.
        executable: the Python of the ranks; None: that of Spark's tasks.

    Returns:
        The function's results, by rank. Ranks of one host are consecutive.

    Raises:
        RuntimeError: a rank failed, or its executor was lost; the rank's exception is the cause.
        TimeoutError: Spark has started too few tasks in time.
    """
    del use_gloo
    if use_mpi or extra_mpi_args:
        raise NotImplementedError("tfring.spark.run needs no MPI. Leave use_mpi=True out")
    wishes = Wishes(
        start_timeout=start_timeout,
        env=env,
        output=Output(stdout, stderr, prefix_output_with_timestamp, shown=bool(verbose)),
        verbose=verbose > 1,
        nics=nics,
        executable=executable,
    )
    return _run(pickled_call(fn, args, kwargs), num_proc, wishes)


class _StaticTunnels(TaskTunnels):
    """Tasks of a job whose ranks see the GPUs of all ranks of their host."""

    workers: list[Where]

    def variables(self, task: Task) -> dict[str, str]:
        """See `TaskTunnels.variables`."""
        gpus = gpus_of_node(self.workers, task.address)
        return {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}


def _run(call: bytes, num_proc: int | None, wishes: Wishes) -> list[Any]:
    """Runs the job; returns the results by rank."""
    context = active_context()
    number = context.defaultParallelism if num_proc is None else num_proc
    if number < 1:
        raise ValueError(f"num_proc={number}: it must be 1 or more")
    with contextlib.ExitStack() as at_end:
        tunnels = _StaticTunnels(*addresses(context))
        at_end.callback(tunnels.close)
        stage = Stage(context, number, tunnels.meeting, barrier=True)
        at_end.callback(stage.stop)
        at_end.callback(tunnels.refuse, "the job is over, or has failed")
        slots = _slots(tunnels, wait_for_tasks(tunnels, stage, number, wishes.start_seconds))
        tunnels.refuse_more("all ranks of the job have their tasks")
        server = at_end.enter_context(function_server(call, tunnels))
        end = run_job(wishes.options(slots, tunnels, server), wishes.output)
        return server.results(number, end.code, end.reason)


def _slots(tunnels: _StaticTunnels, tasks: list[Task]) -> list[Slot]:
    """Returns the ranks of the job, and tells each task which GPUs its rank sees."""
    tunnels.workers = [Where(task.address, task.address, task.gpus) for task in tasks]
    placed = zip(tasks, places(tunnels.workers), strict=True)
    return [dataclasses.replace(slot, host=task.name) for task, slot in placed]
