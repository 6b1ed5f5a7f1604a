"""The Spark job whose tasks hold the ranks."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable

from pyspark import InheritableThread, SparkContext

from tfring.spark.meeting import Meeting, Task
from tfring.spark.task import serve
from tfring.spark.tunnels import TaskTunnels

_LOOK_SECONDS = 0.5
# Time for tasks to end by themselves after the job; then Spark ends them.
_END_SECONDS, _CANCEL_SECONDS = 10.0, 30.0


def active_context() -> SparkContext:
    """Returns the Spark context of this process.

    Raises:
        RuntimeError: there is none.
    """
    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError(
            "there is no SparkContext in this process. Make one first, with "
            "SparkSession.builder.getOrCreate(). A session of Spark Connect has none and cannot "
            "run a job of tfring"
        )
    return context


def addresses(context: SparkContext) -> tuple[str, str]:
    """Returns the address of this process for executors, and the address to listen at.

    Args:
        context: the Spark context; its settings give both.
    """
    conf = context.getConf()
    known = str(conf.get("spark.driver.host", "localhost"))
    return known, str(conf.get("spark.driver.bindAddress", known))


class Stage:
    """Tasks of Spark that work for one job, until `stop`.

    They are a barrier stage: Spark starts all of them at once, or none. Spark does not allow such a
    stage with dynamic allocation. There, and in an elastic job, each task starts when there is a
    place.

    Args:
        context: the Spark context.
        tasks: the number of tasks.
        meeting: how they reach this process.
        barrier: whether they need each other.
        on_end: called in some thread with the reason, when Spark has no more tasks for the job.
    """

    def __init__(
        self,
        context: SparkContext,
        tasks: int,
        meeting: Meeting,
        barrier: bool,
        on_end: Callable[[BaseException], None] = lambda failure: None,
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._work = functools.partial(serve, meeting, barrier)
        self._on_end = on_end
        dynamic = str(context.getConf().get("spark.dynamicAllocation.enabled", "false"))
        self._barrier = barrier and dynamic.lower() != "true"
        self._group = f"tfring-{secrets.token_hex(8)}"
        self._failure: BaseException | None = None  # set by the thread when Spark's job is over
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def failure(self) -> BaseException | None:
        """Returns why Spark has ended the job; None while it has not."""
        return self._failure

    def stop(self) -> None:
        """Ends the job of Spark. The tasks were told before, or have lost their connections."""
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_SECONDS)

    def _run(self) -> None:
        failure: BaseException
        try:
            self._context.setJobGroup(
                self._group, f"tfring: {self._tasks} ranks", interruptOnCancel=True
            )
            rows = self._context.parallelize(range(self._tasks), self._tasks)
            source = rows.barrier() if self._barrier else rows
            found = source.mapPartitionsWithIndex(self._work).collect()
            failure = RuntimeError("; ".join(["its tasks ended", *found]))
        except BaseException as error:
            failure = error
        self._failure = failure
        self._on_end(failure)


def wait_for_tasks(tunnels: TaskTunnels, stage: Stage, number: int, seconds: float) -> list[Task]:
    """Waits until there are enough tasks; returns them, those of one host together.

    Args:
        tunnels: where they connect.
        stage: the job of Spark.
        number: how many are needed.
        seconds: how long to wait.

    Raises:
        TimeoutError: too few came in time.
        RuntimeError: Spark has ended the job; the cause says why.
    """
    until = time.monotonic() + seconds
    while True:
        newest = {task.partition: task for task in tunnels.tasks()}
        if len(newest) >= number:
            tasks = [newest[partition] for partition in sorted(newest)]
            hosts = list(dict.fromkeys(task.address for task in tasks))
            return sorted(tasks, key=lambda task: hosts.index(task.address))
        failure = stage.failure()
        if failure is not None:
            raise RuntimeError(f"Spark could not start {number} tasks: {failure}") from failure
        if time.monotonic() >= until:
            raise TimeoutError(
                f"only {len(newest)} of {number} Spark tasks started within {seconds:g} s, but "
                "each rank needs one. Ask for fewer ranks (num_proc), give Spark more executors, "
                "or wait longer (start_timeout)"
            )
        tunnels.wait(_LOOK_SECONDS)
