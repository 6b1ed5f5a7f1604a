"""`--config-file`: options from a file of YAML, with horovodrun's sections."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfring.launch.hosts.errors import UsageError

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
_NOT_HERE = {"config-file", "help", "check-build", "dry-run"}


def with_file(parsed: argparse.Namespace) -> argparse.Namespace:
    """Returns options, with those of `--config-file` where the command line says nothing.

    The command's parser has set `parser`, and the `words` that it has read. UsageError: see
    words_of_file.
    """
    if not parsed.config_file:
        return parsed
    parser: argparse.ArgumentParser = parsed.parser
    of_file = parser.parse_args(words_of_file(Path(parsed.config_file), parser))
    return parser.parse_args(parsed.words, of_file)


def words_of_file(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Returns the words of a command line that stand for a file.

    UsageError: it cannot be read, or names a key that is no option.
    """
    entries = _entries(path, _load(path))
    return [word for entry in entries for word in _words(path, *entry, parser)]


def _load(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise UsageError('--config-file needs PyYAML: pip install "tfring[cluster]"') from None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config-file {path} cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"--config-file {path} has no names with values, as num_proc: 4")
    return content


def _entries(path: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Gives for each value what to call it in an error, the name of its option, and itself."""
    for key, value in content.items():
        if isinstance(value, dict) and key in _SECTIONS:
            for inner, one in value.items():
                own = f"{_SECTIONS[key]}{inner}".replace("_", "-")
                yield f"{key}: {inner}", _OTHER_NAMES.get((key, inner), own), one
        elif key == "controller":
            if str(value).lower() != "gloo":
                raise UsageError(
                    f"--config-file {path}: controller is {value}: tfring run does not use MPI"
                )
        else:
            yield str(key), str(key).replace("_", "-"), value


def _words(
    path: Path, shown: str, name: str, value: Any, parser: argparse.ArgumentParser
) -> list[str]:
    # argparse has no public way to ask which options there are.
    options = parser._option_string_actions
    action = options.get(f"--{name}") if name not in _NOT_HERE else None
    if action is None:
        raise UsageError(f'--config-file {path}: "{shown}" is no option of {parser.prog}')
    if isinstance(value, bool):
        return _flag(path, shown, name, value, options)
    if name == "env" and isinstance(value, dict):
        value = [f"{variable}={one}" for variable, one in value.items()]
    if value is None or isinstance(value, dict) or action.nargs == 0:
        kind = "true or false" if action.nargs == 0 else "a value"
        raise UsageError(f'--config-file {path}: "{shown}" is {value}, and has to have {kind}')
    values = value if isinstance(value, list) else [value]
    if isinstance(action.nargs, int) and action.nargs > 1:
        return [f"--{name}", *map(str, values)]
    if len(values) != 1 and name != "env":
        values = [",".join(map(str, values))]
    return [f"--{name}={one}" for one in values]


def _flag(
    path: Path, shown: str, name: str, value: bool, options: Mapping[str, argparse.Action]
) -> list[str]:
    """Returns the option for true, or the one with the opposite meaning for false."""
    if value:
        if options[f"--{name}"].nargs in (0, "*"):
            return [f"--{name}"]
        raise UsageError(f'--config-file {path}: "{shown}" is true, and has to have a value')
    opposite = _OPPOSITES.get(name, f"--no-{name}")
    # What is refused, also with this meaning, has nothing to be switched off.
    return [opposite] if opposite in options and options[opposite].nargs == 0 else []
