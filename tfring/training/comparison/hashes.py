"""Hashes: ranks compare them instead of sending variables."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfring.training.value_names import variable_name


def value_of(variable: Any) -> Any:
    """Returns the value of a tf.Variable, a keras.Variable or a tensor as an array to read.

    Does not copy a value in this process's memory.

    Raises:
        TypeError: the variable holds strings.
    """
    held = variable
    while (inner := getattr(held, "value", None)) is not None:
        held = inner() if callable(inner) else inner
    value = np.asarray(held, order="C")
    if value.dtype.hasobject:
        raise TypeError(f"{variable_name(variable)} holds strings, which ranks cannot compare")
    return value


def hash_of(variable: Any) -> int:
    """Returns a 64-bit hash of a value; ranks with equal hashes almost surely have equal bits."""
    return _number(hashlib.blake2b(_bytes(value_of(variable)), digest_size=8))


def fingerprint(variables: Iterable[Any]) -> int:
    """Returns 64 bits for the values of all variables together, in their order.

    Takes 32 bits of each variable, from a checksum several times as fast as a hash.
    """
    digest = hashlib.blake2b(digest_size=8)
    for variable in variables:
        value = value_of(variable)
        digest.update(f"{value.dtype}{value.shape}{zlib.crc32(_bytes(value))}".encode())
    return _number(digest)


def _bytes(value: Any) -> Any:
    return value.reshape(-1).view(np.uint8).data


def _number(digest: Any) -> int:
    return int.from_bytes(digest.digest(), "little", signed=True)
