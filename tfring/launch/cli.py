"""The ``tfring`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tfring.commands import ALL, Command
from tfring.job.security.errors import SecretError
from tfring.launch import bench, coordinator_command, doctor, run
from tfring.launch.hosts.errors import UsageError
from tfring.launch.kubernetes import manifest
from tfring.version import __version__

COMMANDS: tuple[Command, ...] = (run, manifest, coordinator_command, doctor, bench, *ALL)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="tfring", description="Distributed training for TensorFlow and Keras."
    )
    parser.add_argument("-v", "--version", action="version", version=f"tfring {__version__}")
    commands = parser.add_subparsers(dest="action", metavar="COMMAND")
    for command in COMMANDS:
        own = commands.add_parser(command.NAME, allow_abbrev=False, help=command.HELP)
        command.add_options(own)
        own.set_defaults(parser=own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, by default the process's; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    options, unknown = parser.parse_known_args(given)
    command = next((one for one in COMMANDS if options.action == one.NAME), None)
    if command is None:
        parser.print_help()
        return 2
    if unknown:
        options.parser.error(f"there are no such options: {' '.join(unknown)}")
    options.words = given[1:]
    # What goes wrong in a job is not said in a line: it is a bug of the launcher.
    wrong = UsageError if command is run else (OSError, ValueError, SecretError)
    try:
        return command.run(options)
    except BrokenPipeError:
        # The reader of our output is gone; the agents end the ranks when this process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130
    except wrong as error:
        print(f"tfring {command.NAME}: {error}", file=sys.stderr)
        return 2
