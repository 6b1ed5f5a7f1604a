"""tfring.spark.run_elastic: a job whose workers come and go with the tasks of Spark."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from tfring.integration import (
    ELASTIC_SECONDS,
    ElasticOptions,
    EndJob,
    Generation,
    Order,
    Orders,
    Output,
    Service,
    StartWorker,
    pickled_call,
    run_elastic_job,
)
from tfring.spark.settings import Wishes, function_server
from tfring.spark.stage import Stage, active_context, addresses
from tfring.spark.tunnels import TaskTunnels
from tfring.store import TCPStore


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: str | Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls a function on workers of an elastic job, each in a task of Spark, until it is over.

    Spark repeats a task whose executor is lost, which gives the job another worker. It does so at
    most `spark.task.maxFailures` times.

    Args:
        fn: as in `run`; it calls `hvd.init`, and `hvd.elastic.run` inside.
        args: as in `run`.
        kwargs: as in `run`.
        num_proc: workers at the start; None: `spark.default.parallelism`.
        min_num_proc: with fewer workers training waits; None: `num_proc`.
        max_num_proc: the most workers, and the number of Spark tasks; None: `num_proc`.
        start_timeout: seconds that the job waits for all of the first `num_proc` workers. Then it
            begins with those that are there. With fewer than `min_num_proc` it waits at most
            another `elastic_timeout`. None: as in `run`.
        elastic_timeout: the most seconds with too few workers; None: 600.
        reset_limit: the most changes of the workers; None: no limit.
        env: as in `run`.
        stdout: as in `run`.
        stderr: as in `run`.
        verbose: as in `run`.
        nics: as in `run`.
        prefix_output_with_timestamp: as in `run`.
        min_np: Horovod's older name for `min_num_proc`.
        max_np: Horovod's older name for `max_num_proc`.

    Returns:
        The function's results, by rank in the last generation.

    Raises:
        RuntimeError: the job failed; the exception of the last worker that failed is the cause.
    """
    wishes = Wishes(
        start_timeout=start_timeout,
        env=env,
        output=Output(stdout, stderr, prefix_output_with_timestamp, shown=bool(verbose)),
        verbose=verbose > 1,
        nics=nics,
    )
    least = min_num_proc if min_np is None else min_np
    most = max_num_proc if max_np is None else max_np
    elastic = _options(num_proc, least, most, elastic_timeout, reset_limit)
    return _run(pickled_call(fn, args, kwargs), elastic, wishes)


def _options(
    num_proc: int | None,
    least: int | None,
    most: int | None,
    timeout: float | None,
    reset_limit: int | None,
) -> ElasticOptions:
    number = active_context().defaultParallelism if num_proc is None else num_proc
    least = number if least is None else least
    most = number if most is None else most
    if not 1 <= least <= number <= most:
        raise ValueError(
            f"min_num_proc={least}, num_proc={number}, max_num_proc={most}: num_proc, with which "
            "the job begins, must be from min_num_proc to max_num_proc, all 1 or more"
        )
    return ElasticOptions(
        np=number,
        min_np=least,
        max_np=most,
        timeout=ELASTIC_SECONDS if timeout is None else timeout,
        reset_limit=-1 if reset_limit is None else reset_limit,
    )


class _Head(Service):
    """The coordinator in this process; see `Head`. Each task is a host with one slot.

    Args:
        tunnels: the tasks.
        elastic: the numbers of workers.
        start_timeout: seconds that the first generation waits for all ranks.
        orders: takes the coordinator's orders.
    """

    def __init__(
        self, tunnels: TaskTunnels, elastic: ElasticOptions, start_timeout: float, orders: Orders
    ) -> None:
        self._tunnels = tunnels
        self._heard = orders
        # The last generation and the reason of the end; read after the end.
        self.generation, self.reason = Generation(0, ()), ""
        address = tunnels.meeting.address
        self._served = TCPStore(
            address, 0, is_master=True, secret=tunnels.secret, bind_addr=tunnels.bind_address
        )
        host = f"[{address}]" if ":" in address else address
        self._variables = {"TFRING_X_ELASTIC_STORE": f"{host}:{self._served.port}"}
        super().__init__(self._served, elastic, start_timeout, self.put)
        self._looking = threading.Lock()  # guards the order in which lists of tasks are reported
        tunnels.on_change = self._look
        self._look()

    def put(self, order: Order) -> None:
        """Takes an order of the coordinator, in any thread."""
        if isinstance(order, Generation):
            self.generation = order
        if isinstance(order, EndJob):
            self.reason = self.reason or order.reason
        self._heard.put(order)

    def variables(self, start: StartWorker) -> dict[str, str]:
        """See `Head.variables`."""
        del start
        return self._variables

    def connection(self, host: str) -> str:
        """See `Head.connection`."""
        return host

    def spark_ended(self, failure: BaseException) -> None:
        """Ends the job if it is not over: without tasks of Spark no worker can come.

        Args:
            failure: why there are none.
        """
        self.put(EndJob(1, _given_up(failure)))

    def close(self) -> None:
        """See `Head.close`."""
        self._tunnels.on_change = lambda: None
        super().close()
        self._served.close()

    def _look(self) -> None:
        """Tells the coordinator which tasks there are."""
        with self._looking:
            self.set_hosts([(task.name, 1) for task in self._tunnels.tasks()])


def _given_up(failure: BaseException) -> str:
    return f"Spark has ended its job: {failure}"


def _run(call: bytes, elastic: ElasticOptions, wishes: Wishes) -> list[Any]:
    """Runs the job; returns the results by rank."""
    context = active_context()
    heads: list[_Head] = []

    def on_end(failure: BaseException) -> None:
        for head in heads:
            head.spark_ended(failure)

    with contextlib.ExitStack() as at_end:
        tunnels = TaskTunnels(*addresses(context))
        at_end.callback(tunnels.close)
        stage = Stage(context, elastic.max_np, tunnels.meeting, barrier=False, on_end=on_end)
        at_end.callback(stage.stop)
        at_end.callback(tunnels.refuse, "the job is over, or has failed")
        server = function_server(call, tunnels)
        at_end.enter_context(server)

        def make_head(orders: Orders) -> _Head:
            heads.append(_Head(tunnels, elastic, wishes.start_seconds, orders))
            if (failure := stage.failure()) is not None:  # before there was a head
                heads[0].spark_ended(failure)
            return heads[0]

        job = wishes.options([], tunnels, server)
        code = run_elastic_job(job, elastic, make_head, wishes.output).code
        failure = stage.failure() if code else None
        why = _given_up(failure) if failure else heads[0].reason
        members = [member.worker for member in heads[0].generation.members]
        return server.results_of(members, code, why)
