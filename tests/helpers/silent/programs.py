"""Imports all programs, so that they are in the table."""

from . import (  # noqa: F401
    callbacks,
    data,
    files,
    gathers,
    layers,
    loops,
    losses,
    optimizers,
    right_fit,
    right_loops,
    start,
)
