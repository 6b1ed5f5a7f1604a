"""`--config-file`: options from a file of YAML, with horovodrun's sections."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.parser import Parser

# horovodrun's sections, and what stands before the names of their keys in the options. Everything
# that is an option can also stand outside of them.
_SECTIONS = {
    "params": "",
    "autotune": "autotune-",
    "timeline": "timeline-",
    "stall_check": "stall-check-",
    "library_options": "",
    "logging": "log-",
}
# Keys that are no option with this name.
_OTHER_NAMES = {
    ("autotune", "enabled"): "autotune",
    ("stall_check", "enabled"): "stall-check",
    ("logging", "hide_timestamp"): "log-hide-timestamp",
}
_OPPOSITES = {"log-with-timestamp": "--log-without-timestamp"}


def with_file(parsed: argparse.Namespace) -> argparse.Namespace:
    """Returns options, with those of `--config-file` where the command line says nothing.

    The command's parser has set `parser`, and the `words` that it has read. It ends the program
    where a key or a value is wrong. UsageError: the file cannot be read.
    """
    if not parsed.config_file:
        return parsed
    parser: Parser = parsed.parser
    parser.source = f"--config-file {parsed.config_file}: "
    of_file = parser.parse_args(words_of_file(Path(parsed.config_file), parser))
    parser.source = ""
    return cast(argparse.Namespace, parser.parse_args(parsed.words, of_file))


def words_of_file(path: Path, parser: Parser) -> list[str]:
    """Returns the words of a command line that stand for a file.

    UsageError: it cannot be read.
    """
    return [word for name, value in _entries(path) for word in _words(name, value, parser)]


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Gives the name of the option of each value, and the value."""
    try:
        import yaml
    except ImportError:
        raise UsageError('--config-file needs PyYAML: pip install "tfring[cluster]"') from None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config-file {path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config-file {path} has no names with values, as num_proc: 4")
    for key, value in content.items():
        if isinstance(value, dict) and key in _SECTIONS:
            for inner, one in value.items():
                own = f"{_SECTIONS[key]}{inner}".replace("_", "-")
                yield _OTHER_NAMES.get((key, inner), own), one
        elif key != "controller":
            yield str(key).replace("_", "-"), value
        elif str(value).lower() != "gloo":
            raise UsageError(
                f"--config-file {path}: controller is {value}: tfring run does not use MPI"
            )


def _words(name: str, value: Any, parser: Parser) -> list[str]:
    # argparse has no public way to ask which options there are.
    options = parser._option_string_actions
    if value is True:
        return [f"--{name}"]
    if value is False:
        opposite = _OPPOSITES.get(name, f"--no-{name}")
        # What is refused, also with this meaning, has nothing to be switched off.
        return [opposite] if opposite in options and options[opposite].nargs == 0 else []
    if name == "env":
        pairs = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
        return [f"--env={one}" for one in (pairs if isinstance(pairs, list) else [pairs])]
    values = [
        "" if one is None else str(one)
        for one in ([value] if not isinstance(value, list) else value)
    ]
    if (option := options.get(f"--{name}")) is not None and option.nargs == len(values):
        return [f"--{name}", *values]
    return [f"--{name}={','.join(values)}"]
