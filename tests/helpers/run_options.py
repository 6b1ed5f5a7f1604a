"""How `tfring run` reads a command line, for tests."""

from __future__ import annotations

from tfring.launch.cli import main, parser_of
from tfring.launch.options.option import read_options
from tfring.launch.options.run_options import RunOptions


def run_options(*words, program=("python", "train.py")):
    """The options of a command line."""
    parsed = parser_of("run").parse_args([*map(str, words), *program])
    return read_options(RunOptions, parsed)


def refused(capsys, *words):
    """The error message for a command line that is refused."""
    try:
        code = main(list(map(str, words)))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    return capsys.readouterr().err
