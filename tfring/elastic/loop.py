"""elastic.run: calls a training function again after each change of the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tfring.elastic.errors import HostsUpdatedInterrupt
from tfring.elastic.recovery import Recovery, present_recovery
from tfring.elastic.state import State


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a training function go on when ranks are lost or join. A decorator.

    The function gets a state, and begins where that is. Before each call the ranks get one state,
    that of the rank that has the most commits. If a rank is lost, the others go back to their last
    commit and call the function again, in the same processes; if ranks join, all of them do so at a
    commit. It returns when the function has come to its end on all ranks.

    In a job that is not elastic the ranks get one state, and a lost rank is an error, as without
    this.

    Args:
        func: Gets the state, and whatever else the result is called with. An exception that has to
            do with ranks that come or go is handled; others leave as they are, and end this
            process, while the others go on without it.

    Returns:
        A function with the same arguments and result.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        return _run(present_recovery(), state, lambda: func(state, *args, **kwargs))

    return wrapper


def _run(recovery: Recovery, state: State, train: Callable[[], Any]) -> Any:
    recovery.enter(state)
    try:
        return _repeat(recovery, state, train)
    finally:
        recovery.exit()


def _repeat(recovery: Recovery, state: State, train: Callable[[], Any]) -> Any:
    reset = False
    while True:
        try:
            if reset:
                state.on_reset()
                reset = False
            recovery.sync(state)
            value = train()
        except HostsUpdatedInterrupt:
            recovery.at_boundary(state)
        except Exception as error:
            if not recovery.may_go_on(error, state):
                raise
            recovery.after_failure(state)
        else:
            if recovery.finish(state):
                return value
        reset = True
