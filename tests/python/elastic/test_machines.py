"""The state machines and their messages through the binding."""

from __future__ import annotations

import pytest

from tfring.runtime._native import core

m = core.membership


@pytest.mark.parametrize("message", [b"", b"\x01", b"\xff" * 40, b"\x01" * 400])
def test_bytes_of_no_encoder_are_refused(message):
    with pytest.raises(core.CoreError, match="cannot be read"):
        m.decode_report(message)
    with pytest.raises(core.CoreError, match="cannot be read"):
        m.decode_command(message)


def test_text_that_is_no_utf_8_can_be_read():
    report = m.Report()
    report.worker, report.slot, report.host = 1, 0, b"a\xff"
    assert m.decode_report(m.encode_report(report)).host == "a\ufffd"


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(AttributeError):
        m.CoordinatorOptions().min_mp = 3


def test_a_position_can_be_read():
    assert repr(m.Position(4, 12)) == "commit 4 (step 12)"
