"""What a command prints with ``--json``: one object, which a dataclass describes.

Each command has its dataclass as `Answer`. The page of `tfring help json` is made from their
docstrings.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any


def add_json_option(parser: argparse.ArgumentParser, answer: type[Any], when: str = "") -> None:
    """Adds `--json`; `answer` is the dataclass of what is printed, `when` begins the help."""
    names = ", ".join(field.name for field in dataclasses.fields(answer))
    about = f"{when}print one JSON object: {names} (tfring help json)"
    parser.add_argument("--json", action="store_true", help=about)


def as_object(answer: Any) -> dict[str, Any]:
    """Returns a dataclass as plain values for JSON. JSON has no NaN, so it becomes "nan"."""
    found: dict[str, Any] = _plain(dataclasses.asdict(answer))
    return found


def print_json(answer: Any) -> None:
    """Prints a dataclass as one line of JSON, at once also into a pipe."""
    print(json.dumps(as_object(answer)), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
