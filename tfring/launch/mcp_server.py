"""``tfring mcp``: a server of the Model Context Protocol, by which assistants ask about jobs.

Its tools return what the commands of the same names print with --json. They read; nothing that they
do changes a job.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable
from typing import Any

from tfring.job.security.errors import SecretError
from tfring.launch import doctor as doctor_command
from tfring.launch.hosts.errors import UsageError
from tfring.observe.commands import explain as explain_command
from tfring.observe.commands import jobs as jobs_command
from tfring.observe.commands import records as records_command
from tfring.observe.commands import report as report_command
from tfring.observe.commands import stacks as stacks_command
from tfring.observe.commands import top as top_command
from tfring.observe.json_output import as_object
from tfring.version import __version__

_INSTRUCTIONS = (
    "These tools look at training jobs of tfring (data-parallel TensorFlow and Keras) on this "
    "host, while they run or hang and after their end. They change nothing. Begin with `explain` "
    "if a job hangs or has failed, and with `report` if it is slow. `job` is an id of `jobs` or "
    "its beginning, or a folder of records; without it the tools take the job that runs."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Serves tools for assistants on standard input and output: explain, report, stacks, top, "
        "doctor, jobs, records. An assistant starts it; it changes no job. More: tfring help "
        "assistants."
    )
    parser.epilog = "tfring mcp"


def run(options: argparse.Namespace) -> int:
    """Serves until standard input ends; returns 0. UsageError: the SDK is not installed."""
    del options
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise UsageError('the SDK of the protocol is missing: pip install "tfring[mcp]"') from None

    class Server(MCPServer):  # type: ignore[misc]
        """Refuses arguments that a tool does not have: without its job it would show another."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            known = signatures[name].parameters if name in signatures else arguments
            if unknown := arguments.keys() - known:
                raise ToolError(f"{name} has no argument {min(unknown)}")
            return await super().call_tool(name, arguments, context)

    signatures = {name: inspect.signature(tool, eval_str=True) for name, tool in _TOOLS.items()}
    server = Server("tfring", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for name, tool in _TOOLS.items():
        answer = signatures[name].return_annotation
        server.add_tool(
            _as_tool(tool, signatures[name], ToolError),
            description=f"{inspect.getdoc(tool)}\n\n{inspect.getdoc(answer)}",
            annotations=reads,
        )
    server.run("stdio")
    return 0


def _as_tool(
    tool: Callable[..., Any], signature: inspect.Signature, error_kind: type[Exception]
) -> Callable[..., dict[str, Any]]:
    """Returns a function whose result is an object, and whose errors are sentences of commands."""

    @functools.wraps(tool)
    def call(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return as_object(tool(*arguments, **named))
        except (OSError, ValueError, SecretError) as error:
            raise error_kind(str(error)) from error

    # The SDK reads the arguments from it, and that the result is an object.
    signature = signature.replace(return_annotation=dict[str, Any])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _named(job: str) -> list[str]:
    return [job] if job else []


def explain(job: str = "") -> explain_command.Answer:
    """Says why a job hangs, has failed or is slow.

    Use it first. It names the cause, the ranks at fault, the line of the program where each rank
    is, the evidence, and what to do.
    """
    return explain_command.answer(_named(job))


def report(job: str = "") -> report_command.Answer:
    """Says where the time of a job goes, and which rank is slow.

    Use it if a job runs but is slow, or for a summary of one that has ended. Times of ranks are
    nanoseconds per step.
    """
    return report_command.answer(_named(job))


def stacks(job: str = "") -> stacks_command.Answer:
    """Returns the Python stacks of all threads of each rank, also while they hang.

    Use it if `explain` names a rank but not why it does not go on. Each rank answers on a thread of
    its own; its program goes on meanwhile.
    """
    return stacks_command.answer(_named(job))


def top(job: str = "") -> top_command.Answer:
    """Looks at a running job for one second: step, speed, memory, and what each rank waits for.

    Use it to see whether a job makes progress, and how fast.
    """
    return top_command.answer(_named(job))


def doctor() -> doctor_command.Answer:
    """Says what is wrong with this installation of tfring, and what is installed.

    Use it if a job does not start, or before the first one. It takes some seconds.
    """
    return doctor_command.answer()


def jobs() -> jobs_command.Answer:
    """Lists the jobs of this user on this host: those that run, and those of the last day.

    Use it to find the id of a job, or which jobs hang.
    """
    return jobs_command.answer()


def records(
    job: str = "", rank: int = 0, name: str = "", state: str = "", last: int = 20
) -> records_command.Answer:
    """Returns the last collective calls of one rank.

    Use it to compare what two ranks have called. `name` keeps calls whose name has this text,
    `state` those that are "waits", "runs", or ended so, such as "OK"; `last` is how many.
    """
    return records_command.answer(_named(job), rank, name, state, last)


_TOOLS: dict[str, Callable[..., Any]] = {
    tool.__name__: tool for tool in (explain, report, stacks, top, doctor, jobs, records)
}
