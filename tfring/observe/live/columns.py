"""The columns of `tfring top`: what each shows, how wide a window has to be, and its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tfring.observe.live.lines import Line
from tfring.runtime.texts.sizes import size_text


class Column(NamedTuple):
    """A column.

    Attributes:
        name: Its heading.
        value: What lines are sorted by; None: unknown.
        text: Formats a known value.
        about: For the help.
        least_width: Of the window, to show this column.
        right: Whether it is a number.
        internal: Whether only --internals shows it.
    """

    name: str
    value: Callable[[Line], Any]
    text: Callable[[Any], str]
    about: str
    least_width: int = 0
    right: bool = True
    internal: bool = False


def number(value: float) -> str:
    """Returns a number with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def percent(value: float) -> str:
    """Returns a share as text."""
    return f"{100 * value:.0f} %"


def loss_text(value: float) -> str:
    """Returns a loss with about four digits, so that those of ranks line up."""
    return f"{value:#.4g}" if abs(value) < 1000 else f"{value:.4g}"


def _epoch(value: tuple[int, int]) -> str:
    epoch, epochs = value
    return f"{epoch}/{epochs}" if epochs else str(epoch)


COLUMNS = (
    Column("rank", lambda line: line.ranks[0], str, "which rank; with h, all ranks of a host"),
    Column("host", lambda line: line.host, str, "its host", 110, right=False),
    Column(
        "epoch",
        lambda line: None if line.epoch is None else (line.epoch, line.epochs or 0),
        _epoch,
        "in fit: which, and of how many",
    ),
    Column("step", lambda line: line.step, str, "steps trained so far"),
    Column("loss", lambda line: line.loss, loss_text, "in fit: of this rank's data, in this epoch"),
    Column("step/s", lambda line: line.steps, number, "steps per second", 110),
    Column("samples/s", lambda line: line.samples, number, "in fit: samples per second"),
    Column("input", lambda line: line.input, percent, "share of the time that it waits for data"),
    Column(
        "exchange",
        lambda line: line.exchange,
        percent,
        "share of the time that it waits for other ranks and for gradients",
    ),
    Column(
        "callbacks",
        lambda line: line.callbacks,
        percent,
        "share of the time that Keras' callbacks take after each batch",
        100,
    ),
    Column(
        "awaited",
        lambda line: line.awaited,
        percent,
        "share of the time in which all other ranks waited for this one alone",
        100,
    ),
    Column("CPU", lambda line: line.cpu, percent, "processors that it keeps busy: 200 % is two"),
    Column("memory", lambda line: line.memory, size_text, "of its process, on the host"),
    Column("GPU", lambda line: line.gpu, lambda value: f"{value:.0f} %", "how busy its GPU is", 78),
    Column("GPU mem", lambda line: line.gpu_memory, size_text, "that it holds on its GPU", 100),
    Column(
        "wait",
        lambda line: line.waiting,
        str,
        "collectives that some other rank has not called yet",
        110,
        internal=True,
    ),
    Column("run", lambda line: line.running, str, "collectives under way", 110, internal=True),
    Column("state", lambda line: line.state, str, "what it does", right=False),
    Column(
        "last collective", lambda line: line.last, str, "its newest call", 140, False, internal=True
    ),
)
