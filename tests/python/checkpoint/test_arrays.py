"""The file of arrays of a checkpoint: how its headers are checked."""

from __future__ import annotations

import ast
import dataclasses
import io
from typing import Any

import numpy as np
import pytest

from tfring.checkpoint import InvalidCheckpointError, arrays

STATE = {"a/b": np.arange(6.0).reshape(2, 3), "number": np.int64(7), "blob": b"abc"}


def test_what_was_written_is_read_back_without_pythons_parser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    file = io.BytesIO()
    parts = arrays.write(file, arrays.copied(STATE))
    monkeypatch.setattr(ast, "literal_eval", fail)
    assert [name for name, _ in arrays.read(file, parts)] == list(STATE)


@pytest.mark.parametrize("shape", ["(2, 3)", "(3, 2)"])
def test_a_header_that_was_written_otherwise_is_parsed(
    monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    def other(file: Any, _: Any) -> None:
        text = f"{{'shape': {shape}, 'fortran_order': False, 'descr': '<f8', }}".ljust(117) + "\n"
        file.write(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode())

    file = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", other)
        parts = arrays.write(file, arrays.copied({"array": STATE["a/b"]}))
    if shape == "(2, 3)":
        ((_, value),) = arrays.read(file, parts)
        np.testing.assert_array_equal(value, STATE["a/b"])
    else:
        with pytest.raises(InvalidCheckpointError, match=r"has shape \(3, 2\) .* says \(2, 3\)"):
            list(arrays.read(file, parts))


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (2, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }"),
        (1, "{[]: 1}"),
        (1, "{1: '<f8', 'descr': '<f8', 'shape': (2, 3)}"),
        (1, "{'descr': (), 'fortran_order': False, 'shape': (2, 3)}"),
        (1, "'''"),
        (1, "if 1:\n  a\n b"),
        (1, "-" * 9000 + "1"),
    ],
    ids=["second version", "list as key", "number as key", "no dtype", "text", "lines", "deep"],
)
def test_a_header_that_numpy_cannot_parse_is_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, version: int, text: str
) -> None:
    """The checksums are right: the file was written that way."""
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    header = b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()
    file = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", lambda f, _: f.write(header))
        parts = arrays.write(file, arrays.copied({"array": STATE["a/b"]}))
    with pytest.raises(InvalidCheckpointError, match="damaged"):
        list(arrays.read(file, parts))


@pytest.mark.parametrize("dtype", ["float4_of_next_year", "finfo", "|O", ""])
def test_a_dtype_that_is_not_known_here_is_said(dtype: str) -> None:
    file = io.BytesIO()
    parts = arrays.write(file, arrays.copied({"array": STATE["a/b"]}))
    parts["array"] = dataclasses.replace(parts["array"], dtype=dtype)
    with pytest.raises(InvalidCheckpointError, match="is not known here"):
        list(arrays.read(file, parts))
