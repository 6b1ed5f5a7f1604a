"""The other side of `tfring mcp`: a client of the SDK, with a server in its own process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from launcher_tools import environment
from mcp import Client, StdioServerParameters, stdio_client


@contextlib.asynccontextmanager
async def connected(prefix: Sequence[str] = (), **more: str) -> AsyncIterator[Client]:
    """Starts `tfring mcp`, behind the words of `prefix`, with more variables; ends it."""
    command, *arguments = [*prefix, sys.executable, "-m", "tfring", "mcp"]
    server = StdioServerParameters(command=command, args=arguments, env=environment(**more))
    async with Client(stdio_client(server)) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The object that a tool returns."""
    found = await client.call_tool(tool, arguments)
    assert not found.is_error, found.content
    assert found.structured_content is not None
    return dict(found.structured_content)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool says that fails."""
    found = await client.call_tool(tool, arguments)
    assert found.is_error and found.structured_content is None, found
    return "\n".join(getattr(part, "text", "") for part in found.content)
