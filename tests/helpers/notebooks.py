"""Runs notebooks in a real kernel, and keeps what their cells print and show."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import launcher_tools as tools
import pytest

_ESCAPES = re.compile(r"\x1b\[[\d;]*m")  # colors in tracebacks

# Called with the notebook when a text is printed for the first time.
Reaction = Callable[["Notebook"], Awaitable[None]]


class Notebook:
    """Runs cells in a kernel of this Python and keeps the texts of each cell.

    Attributes:
        printed: by cell, its standard and error output together.
        errors: by cell, the traceback that Jupyter showed, without colors; "" if none.
        results: by cell, the last expression by kind: {"text/plain": ...}.
    """

    def __init__(self, cells: Sequence[str], folder: Any, on: Mapping[str, Reaction] | None = None):
        """Prepares the cells.

        Args:
            cells: their code.
            folder: where the kernel runs.
            on: the action when a cell prints a text for the first time.
        """
        nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient")
        nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
        pytest.importorskip("ipykernel", reason="notebooks need ipykernel")
        count = len(cells)
        self.printed, self.errors = [""] * count, [""] * count
        self.results: list[dict[str, Any]] = [{} for _ in cells]
        self._waiting = dict(on or {})
        self._tasks: list[asyncio.Task[None]] = []
        texts = [textwrap.dedent(cell).strip() for cell in cells]
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(t) for t in texts])
        self.client = nbclient.NotebookClient(
            book,
            kernel_name="python3",
            allow_errors=True,
            timeout=tools.LIMIT_SECONDS,
            startup_timeout=tools.LIMIT_SECONDS,
            iopub_timeout=tools.LIMIT_SECONDS,
            raise_on_iopub_timeout=True,
            resources={"metadata": {"path": str(folder)}},
        )
        self._process = self.client.process_message
        self.client.process_message = self._observe

    def run(self) -> Notebook:
        """Runs the cells, one after another; a cell that fails does not stop the next."""
        environment = tools.environment(PYTHONWARNINGS="ignore")
        self.client.execute(env=environment)
        return self

    async def interrupt(self) -> None:
        """Interrupts the kernel, as Jupyter's button does."""
        await self.client.km.interrupt_kernel()

    def _observe(self, message: Any, cell: Any, number: int) -> Any:
        content = message["content"]
        if message["msg_type"] == "stream":
            self.printed[number] += content["text"]
            for text in [text for text in self._waiting if text in self.printed[number]]:
                reaction = self._waiting.pop(text)
                task = asyncio.get_event_loop().create_task(reaction(self))  # type: ignore[arg-type]
                self._tasks.append(task)
        elif message["msg_type"] == "error":
            self.errors[number] = _ESCAPES.sub("", "\n".join(content["traceback"]))
        elif message["msg_type"] == "execute_result":
            self.results[number] = content["data"]
        return self._process(message, cell, number)


def cells_of(path: Any) -> list[str]:
    """Returns the code cells of a notebook in a file."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    book = nbformat.read(path, as_version=4)
    return [cell.source for cell in book.cells if cell.cell_type == "code"]
