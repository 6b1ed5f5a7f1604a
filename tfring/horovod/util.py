"""The functions of horovod.common.util that scripts import."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import tfring
from tfring.horovod import build_flags
from tfring.horovod.helpers import check_num_rank_power_of_2, gpu_available, split_list


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError for a part of Horovod that tfring does not replace.

    Args:
        ext_name: for example "horovod.tensorflow".
        ext_env_var: not used: the variable that builds Horovod with this part.
        pkg_path: not used: the path of Horovod's extension.
        *args: not used.

    Raises:
        ImportError: ext_name is not a part for TensorFlow.
    """
    del ext_env_var, pkg_path, args
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name}: tfring replaces Horovod's TensorFlow parts only")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether Horovod's part for a framework exists: True for "tensorflow"."""
    del verbose
    return ext_base_name == "tensorflow"


def _with_verbose(function: Callable[[], Any]) -> Callable[..., Any]:
    """Returns a function of hvd as Horovod has it here: it also takes `verbose`."""

    def answer(verbose: bool = False) -> Any:
        del verbose
        return function()

    answer.__name__, answer.__doc__ = function.__name__, function.__doc__
    return answer


mpi_built = _with_verbose(tfring.mpi_built)
gloo_built = _with_verbose(build_flags.gloo_built)
nccl_built = _with_verbose(tfring.nccl_built)
ddl_built = _with_verbose(build_flags.ddl_built)
ccl_built = _with_verbose(build_flags.ccl_built)
cuda_built = _with_verbose(tfring.cuda_built)
rocm_built = _with_verbose(build_flags.rocm_built)


@contextlib.contextmanager
def env(**kwargs: str) -> Iterator[None]:
    """Sets environment variables for a `with` block.

    Args:
        **kwargs: values by name.
    """
    before = {name: os.environ.get(name) for name in kwargs}
    os.environ.update(kwargs)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Returns a function that combines the arguments `op` and `average` into a reduce operation.

    Args:
        reduce_ops: has the attributes Average and Sum.
    """

    def choose(op: Any, average: Any) -> Any:
        if op is not None and average is not None:
            raise ValueError("give op= or average=, not both. op= is newer")
        if op is not None:
            return op
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether the number is a power of two."""
    return check_num_rank_power_of_2(num_rank)


def is_iterable(x: Any) -> bool:
    """Whether a value can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version, such as "2.21.0", is at least another of the same form."""
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


__all__ = [
    "ccl_built",
    "check_extension",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]
