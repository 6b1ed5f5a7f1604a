"""The gathers with Horovod's gradients, for `import horovod.tensorflow`.

They are tfring's, with the default gradient="horovod".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tfring.collectives import allgather as gathers
from tfring.collectives import broadcast as broadcasts
from tfring.collectives import reducescatter as scatters
from tfring.ops import library

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_horovods_gradient(function: _Function) -> _Function:
    """Returns a collective whose parameter `gradient` is "horovod" by default."""

    @library.outside_autograph
    @functools.wraps(function)
    def call(*args: Any, gradient: str = "horovod", **kwargs: Any) -> Any:
        return function(*args, gradient=gradient, **kwargs)

    return cast(_Function, call)


allgather = with_horovods_gradient(gathers.allgather)
grouped_allgather = with_horovods_gradient(gathers.grouped_allgather)
broadcast = with_horovods_gradient(broadcasts.broadcast)
reducescatter = with_horovods_gradient(scatters.reducescatter)
grouped_reducescatter = with_horovods_gradient(scatters.grouped_reducescatter)
