"""MultiWorkerMirroredStrategy (RING): the program of a process beside each rank."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import tensorflow as tf

from benchmarks.peers.task import Call, Place, serve
from tfring.bench import models
from tfring.bench.options import shape_of


class MultiWorker:
    """tf.distribute in a tf.function, minus the time of the same function without it.

    Args:
        place: The place of this process.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._strategy: Any = None
        self._one: Call = lambda: None
        with socket.socket() as free:
            free.bind((place.host, 0))
            self.address = f"{place.host}:{free.getsockname()[1]}"

    def join(self, addresses: list[str]) -> None:
        """Connects the processes."""
        task = {"type": "worker", "index": self._place.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        tf.config.threading.set_intra_op_parallelism_threads(self._place.threads)
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=ring
            )
        )
        self._one = self._allreduce([tf.zeros([1])])[0]

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._one()

    def prepare(self, spec: dict[str, Any]) -> tuple[Call, Call | None]:
        """Returns a function that runs a case."""
        kind = spec["kind"]
        if kind == "step":
            return self._step(spec["model"]), None
        dtype = tf.as_dtype(spec["dtype"])
        if kind == "set":
            return self._allreduce([tf.ones([count], dtype) for count in spec["counts"]])
        given = tf.ones(
            [shape_of(kind, spec["bytes"], spec["dtype"], self._place.size).given], dtype
        )
        if kind == "allreduce":
            return self._allreduce([given])
        if kind == "allgather":
            return self._run(lambda x: _replica().all_gather(x[0], axis=0), [given])
        raise NotImplementedError(f"tf.distribute has no {kind}")

    def _allreduce(self, tensors: list[Any]) -> tuple[Call, Call]:
        return self._run(lambda x: _replica().all_reduce(tf.distribute.ReduceOp.SUM, x), tensors)

    def _run(self, collective: Any, tensors: list[Any]) -> tuple[Call, Call]:
        def made(of_replica: Any) -> Call:
            def by_strategy(values: list[Any]) -> Any:
                return self._strategy.run(of_replica, args=(values,))

            function = tf.function(by_strategy)
            return lambda: function(tensors)

        def doubled(values: list[Any]) -> list[Any]:
            return [value + value for value in values]

        return made(lambda values: collective(doubled(values))), made(doubled)

    def _step(self, kind: str) -> Call:
        """Returns a step of the same model with gradients averaged by the strategy."""
        with self._strategy.scope():
            step, batch = models.step_and_batch(kind, distributed=False)

        def by_strategy(images: Any, labels: Any) -> Any:
            return self._strategy.run(step, args=(images, labels))

        function = tf.function(by_strategy)
        return lambda: function(*batch)


def _replica() -> Any:
    return tf.distribute.get_replica_context()


if __name__ == "__main__":
    serve(MultiWorker)
