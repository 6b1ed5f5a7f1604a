"""The actor that is a rank: it holds the user's object and calls functions."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from tfring import world
from tfring.exceptions import described
from tfring.launcher.agents.agent import open_rendezvous
from tfring.ray.variables import Where, with_own_first

_log = logging.getLogger("tfring")


class Ended(NamedTuple):
    """How the function of a worker of an elastic job ended without an exception.

    Attributes:
        left: Whether the worker left the job, as the coordinator told it or by sys.exit.
        code: With which exit code.
        result: What the function returned, if it did.
    """

    left: bool
    code: int
    result: Any


class Worker:
    """A rank, or a worker of an elastic job. Ray calls its methods one after the other.

    Args:
        name: As messages call it; Ray shows it in tracebacks and in front of the output.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executable: Any = None
        self._failure: BaseException | None = None  # of the last call; None: it ended well
        self._listener: socket.socket | None = None  # of rank 0

    def __repr__(self) -> str:
        return self._name

    def where(self) -> Where:
        """Returns where this worker runs."""
        context = ray.get_runtime_context()
        gpus = tuple(map(str, context.get_accelerator_ids().get("GPU", [])))
        return Where(context.get_node_id(), ray.util.get_node_ip_address(), gpus)

    def update_env_vars(self, variables: Mapping[str, Any]) -> None:
        """Sets variables of this process."""
        os.environ.update({name: str(value) for name, value in variables.items()})

    def env_vars(self) -> dict[str, str]:
        """Returns the variables of this process."""
        return dict(os.environ)

    def listen(self, interface: str | None, towards: str | None) -> dict[str, str]:
        """On rank 0, opens the socket at which the others find it; returns it as variables.

        Args:
            interface: The network interfaces to use; None: what fits.
            towards: The address of another node of the job; None: there is none.
        """
        self._listener = open_rendezvous(interface, towards)
        address, port = self._listener.getsockname()[:2]
        os.environ["TFRING_RENDEZVOUS_FD"] = str(self._listener.fileno())
        return {"TFRING_RENDEZVOUS_ADDR": address, "TFRING_RENDEZVOUS_PORT": str(port)}

    def start_executable(
        self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Makes the user's object, which later functions get."""
        with self._called():
            self._executable = cls(*args, **kwargs)

    def execute(self, function: Callable[[Any], Any]) -> Any:
        """Calls a function with the user's object, None if there is none."""
        with self._called():
            return function(self._executable)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Calls a function with arguments."""
        with self._called():
            return function(*args, **kwargs)

    def settle(self) -> None:
        """If the last call failed, leaves the job, so that the others' calls end with an error.

        Not in the call itself: who waits for the results hears of the first error first.
        """
        if self._failure is not None:
            error, self._failure = self._failure, None
            self.leave(described(error))

    def leave(self, error: str = "") -> None:
        """Leaves the job; the next `init` begins a new one.

        Args:
            error: Why, for the errors of the other ranks; "" for a goodbye.
        """
        try:
            world.leave(error)
        except Exception:
            _log.exception("%s could not leave its job", self._name)

    def run_elastic(self, function: Callable[[], Any], gpus: int, slot: int) -> Ended:
        """Calls the function of an elastic job; the process is over afterwards.

        Args:
            function: It calls `init`, and `elastic.run` inside.
            gpus: How many GPUs the node has, if workers get any.
            slot: The slot on the node.
        """
        if gpus:
            own = self.where().gpus
            os.environ["CUDA_VISIBLE_DEVICES"] = with_own_first(gpus, own, slot)
        try:
            ended = Ended(False, 0, function())
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            ended = Ended(True, code, None)
        except BaseException as error:
            world.end_of_program(error)
            raise
        world.end_of_program()  # waits for the others, as at the end of any program
        return ended

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        self._failure = None
        try:
            yield
        except SystemExit as end:  # Ray would take it for the wish to end this process
            self._failure = RuntimeError(f"the function called sys.exit({end.code!r})")
            raise self._failure from end
        except Exception as error:
            self._failure = error
            raise
