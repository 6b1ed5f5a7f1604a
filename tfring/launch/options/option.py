"""Options of a command as the fields of a dataclass: each field has its spelling and its help."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import Any, TypeVar

_Options = TypeVar("_Options")


def option(*names: str, default: Any = None, **rest: Any) -> Any:
    """Returns a field of a dataclass that a command line gives; without names what follows options.

    The rest is as for `argparse.ArgumentParser.add_argument`; and `group`, the title and the
    description under which the help has this option and those after it, and `other`, what `spelled`
    returns. The help says the default.
    """
    return dataclasses.field(default=default, metadata=spelled(*names, **rest))


def switch(*names: str, **rest: Any) -> Any:
    """Returns a field that is true where its option is given; else as `option`."""
    return option(*names, default=False, action="store_true", **rest)


def count(*names: str, low: int = 0, high: float = math.inf, **rest: Any) -> Any:
    """Returns a field for a whole number; else as `option`."""
    return option(*names, **{"metavar": "N", "type": number(int, low, high), **rest})


def seconds(*names: str, above: bool = False, **rest: Any) -> Any:
    """Returns a field for a time; `above`: it is above 0; else as `option`."""
    return option(*names, **{"metavar": "SECONDS", "type": number(float, above=above), **rest})


def spelled(*names: str, **rest: Any) -> dict[str, Any]:
    """Returns another way to give the value of an option, which excludes the first one."""
    return {"names": names, **rest}


def add_options(
    parser: argparse.ArgumentParser, kind: type[Any], only: Collection[str] | None = None
) -> None:
    """Adds the options of a dataclass to a parser; `only` names the fields to add."""
    target: Any = parser
    title = None
    for field in dataclasses.fields(kind):
        rest = dict(field.metadata)
        group, other = rest.pop("group", None), rest.pop("other", None)
        title = group or title
        if not rest or (only is not None and field.name not in only):
            continue
        if title is not None:
            target, title = parser.add_argument_group(*title), None
        if other is None:
            _add(target, field, **rest)
        else:
            either = target.add_mutually_exclusive_group()
            _add(either, field, **rest)
            _add(either, field, **other)


def _add(target: Any, field: dataclasses.Field[Any], names: tuple[str, ...], **rest: Any) -> None:
    if field.default is None and not rest.keys() & {"action", "choices"}:
        rest.setdefault("type", _text)
    if "type" in rest:
        rest["type"] = told(rest["type"])
    if not names:
        target.add_argument(field.name, **rest)
        return
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    if not isinstance(default, bool) and isinstance(default, str | float | int) and default != "":
        rest["help"] += f" (default {default if isinstance(default, str) else f'{default:g}'})"
    target.add_argument(*names, dest=field.name, default=default, **rest)


def _text(text: str) -> str:
    if not text:
        raise ValueError("The value is empty. Check the variables of your shell.")
    return text


def told(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a function that tells argparse why it refuses a text."""

    @functools.wraps(convert)
    def converted(text: str) -> Any:
        try:
            return convert(text)
        except (ValueError, OverflowError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def read_options(kind: type[_Options], parsed: argparse.Namespace, **more: Any) -> _Options:
    """Returns the options that a parser has found, with more values of other fields.

    Fields that the parser does not know keep their defaults.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if hasattr(parsed, field.name):
            value = getattr(parsed, field.name)
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**{**values, **more})


def given(options: Any, *names: str) -> list[str]:
    """Returns the spellings of those of some fields that differ from their defaults."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    return [
        fields[name].metadata["names"][0]
        for name in names
        if getattr(options, name) != fields[name].default
    ]


def words_of(options: Any, *names: str) -> list[str]:
    """Returns words of a command line that give some of the options again.

    The fields hold switches, texts or numbers.
    """
    words: list[str] = []
    for name in names:
        value = getattr(options, name)
        for spelling in given(options, name):
            words += [spelling] if value is True else [spelling, str(value)]
    return words


def number(
    kind: type[int] | type[float], low: float = 0, high: float = math.inf, *, above: bool = False
) -> Callable[[str], float]:
    """Returns what reads a number, a whole one if `kind` is int.

    With `above` it has to be above `low`.
    """
    allowed = "a whole number" if kind is int else "a number"
    if above:
        allowed += f" above {low:g}"
    elif high < math.inf:
        allowed += f" from {low:g} to {high:.0f}"
    else:
        allowed += f", {low:g} or more"

    def convert(text: str) -> float:
        value: float = math.nan
        with contextlib.suppress(ValueError):
            value = kind(text)
        if not low <= value <= high or math.isinf(value) or (above and value == low):
            raise ValueError(f"{text} is not {allowed}.")
        return value

    return convert
