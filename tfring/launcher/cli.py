"""The ``tfring`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tfring.launcher import doctor
from tfring.launcher.job import JobRunner
from tfring.launcher.options import add_options, job_options
from tfring.launcher.output import OutputMerger
from tfring.launcher.placement import UsageError
from tfring.version import __version__


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="tfring", description="Distributed training for TensorFlow and Keras."
    )
    parser.add_argument("-v", "--version", action="version", version=f"tfring {__version__}")
    commands = parser.add_subparsers(dest="action", metavar="run|doctor")
    run = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="start a program on several ranks",
        description="Starts a program on several ranks, here or on other hosts through ssh. Prints "
        "their output with the prefix [rank]<stdout>: or [rank]<stderr>:, and ends all when one "
        "fails. Their standard input is empty. Other hosts need the same Python and tfring at the "
        "same path. The exit code is that of the rank that failed first.",
        usage="tfring run -np N [-H host:slots,...] [options] command ...",
    )
    add_options(run)
    commands.add_parser("doctor", help="show what is installed and what is wrong")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The arguments without the program's name; None takes the process's.

    Returns:
        The exit code.
    """
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.action == "doctor" or (options.action == "run" and options.check_build):
        return doctor.main()
    if options.action != "run":
        parser.print_help()
        return 2
    try:
        job = job_options(options)
        merger = OutputMerger(
            sys.stdout.buffer,
            sys.stderr.buffer,
            timestamps=options.prefix_output_with_timestamp,
            all_info=options.show_tensorflow_info,
        )
        return JobRunner(job, merger).run()
    except UsageError as error:
        print(f"tfring run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; the agents end the ranks when this process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
