"""The ``tfring`` command: which commands there are. The module of one is loaded when it is run."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from tfring.job.security.errors import SecretError
from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.parser import Parser, did_you_mean
from tfring.launch.pages import pages
from tfring.version import __version__

# What the help shows: titles, and commands with their modules and what they do.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "run": ("tfring.launch.run", "start a program on several ranks"),
        "doctor": ("tfring.launch.doctor", "say what is wrong with this installation"),
        "bench": ("tfring.launch.bench", "measure collectives and training steps here"),
        "help": ("tfring.launch.help", "print pages of the documentation"),
    },
    "Look at a job that runs or is over": {
        "jobs": ("tfring.observe.commands.jobs", "list the jobs of this user on this host"),
        "top": ("tfring.observe.commands.top", "watch the ranks of a job"),
        "explain": ("tfring.observe.commands.explain", "say what is wrong with a job"),
        "report": ("tfring.observe.commands.report", "show where the time goes"),
        "stacks": ("tfring.observe.commands.stacks", "print the stacks of all ranks"),
        "profile": ("tfring.observe.commands.profile", "sample all ranks: a flame graph"),
        "timeline": ("tfring.observe.commands.timeline", "write a timeline for ui.perfetto.dev"),
        "records": ("tfring.observe.commands.records", "print the last calls of one rank"),
        "dump": ("tfring.observe.commands.dump", "write one file for a bug report"),
        "mcp": ("tfring.launch.mcp_server", "let an assistant ask about jobs"),
    },
    "Clusters": {
        "manifest": ("tfring.launch.kubernetes.manifest", "print a manifest for Kubernetes"),
        "coordinator": ("tfring.launch.coordinator_command", "coordinate an elastic job of nodes"),
    },
}
_FIRST = """\
  tfring doctor
  tfring run -np 2 python train.py
  tfring run --help"""
MODULES = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}


class Command(Protocol):
    """The module of a command."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's description, options and, as `epilog`, examples."""

    def run(self, options: argparse.Namespace) -> int:
        """Runs it; returns the exit code.

        Raises:
            ValueError: The options or the records are wrong; the message is for the user.
            OSError: A file cannot be read or written.
        """


def parser_of(name: str) -> Parser:
    """Returns the parser of a command."""
    parser = Parser(name)
    _load(name).add_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, by default the process's; returns the exit code."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # The reader of our output is gone; the agents end the ranks when this process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130


def _main(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-v", "--version"):
        print(f"tfring {__version__}")
        return 0
    if name in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if name not in MODULES:
        hint = did_you_mean(name, MODULES) or " tfring --help lists the commands."
        print(f"tfring has no command {name}.{hint}", file=sys.stderr)
        return 2
    if name == "help" and len(words) == 2 and words[1] in MODULES and words[1] not in pages():
        return _run(words[1], ["--help"])
    return _run(name, words[1:])


def _load(name: str) -> Command:
    command: Command = importlib.import_module(MODULES[name])
    return command


def _run(name: str, words: list[str]) -> int:
    # What goes wrong in a job is not said in a line: it is a bug of the launcher.
    wrong = UsageError if name == "run" else (OSError, ValueError, SecretError)
    try:
        return _load(name).run(parser_of(name).parse_args(words))
    except BrokenPipeError:
        raise
    except wrong as error:
        print(f"tfring {name}: {error}", file=sys.stderr)
        return 2


def _overview() -> str:
    parts = ["usage: tfring COMMAND ...", "Distributed training for TensorFlow and Keras."]
    for title, commands in GROUPS.items():
        rows = "\n".join(f"  {name:12} {about}" for name, (_, about) in commands.items())
        parts.append(f"{title}:\n{rows}")
    return "\n\n".join([*parts, f"Begin with:\n{_FIRST}"])
