"""The source lines of functions that are in no file, as in notebooks, for tracebacks of ranks."""

from __future__ import annotations

import io
import linecache
import os
import types
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle

_MOST_BYTES = 1 << 20  # of all of them: the newest


def dumps(value: Any, what: str, instead: str) -> bytes:
    """Pickles as cloudpickle does; functions keep the names of files that their tracebacks show.

    Newer versions of cloudpickle give all code that they send one name. TypeError says that `what`
    cannot be pickled, and what to do `instead`.
    """
    try:
        with io.BytesIO() as file:
            _Pickler(file).dump(value)
            return file.getvalue()
    except Exception as error:  # whatever a class of the user's raises
        reason = f"{type(error).__name__}: {error}"
        raise TypeError(f"{what} cannot be pickled ({reason}): {instead}") from error


def collect() -> dict[str, str]:
    """Returns the sources that this process knows and no file holds, by the names in tracebacks.

    Python keeps them in linecache, where a notebook or an interactive Python has put them.
    """
    found: dict[str, str] = {}
    left = _MOST_BYTES
    for name, entry in reversed(list(linecache.cache.items())):
        lines = entry[2] if len(entry) == 4 and entry[1] is None else []
        text = "".join(lines)
        left -= len(text)
        if left < 0:
            break
        if text and not os.path.exists(name):
            found[name] = text
    return found


def install(sources: Mapping[str, str]) -> None:
    """Lets the tracebacks of this process show the lines that `collect` has returned."""
    for name, text in sources.items():
        # No time of a change: linecache does not look for a file.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _rebuilt(make: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> Any:
    return make(*arguments).replace(co_filename=name)


def _reduced(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return _rebuilt, (make, arguments, code.co_filename)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """cloudpickle's pickler with another way to reduce code."""

    dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap(
        {types.CodeType: _reduced}, cloudpickle.CloudPickler.dispatch_table
    )
