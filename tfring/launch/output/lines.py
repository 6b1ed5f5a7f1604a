"""What lines of ranks say: which of TensorFlow's nobody needs, which are the same."""

from __future__ import annotations

import codecs
import re

# What TensorFlow's C++ code logs with level INFO: which instructions and devices it has found, that
# it compiles with XLA; what its logging library says before it is set up; and what it logs as
# warnings and errors whenever it starts on a machine with GPUs. Other warnings, errors and what
# Python logs look otherwise.
_SOURCE = rb"[\w./-]+\.(?:cc|h|cu|cuh|cpp):\d+\] "
_INFO = re.compile(
    rb"I\d{4} [\d:.]+ +\d+ " + _SOURCE + rb"|"
    rb"\d{4}-\d\d-\d\d [\d:.]+: I " + _SOURCE + rb"|"
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR|"
    rb"To enable the following instructions: .* rebuild TensorFlow with |"
    rb"[EW\d].{0,60}" + _SOURCE + rb"(?:"
    rb"Unable to register cu\w+ factory: .* has already been registered|"
    rb"computation placer already registered|"
    rb"TF-TRT Warning: Could not find TensorRT)"
)

# What differs at the beginning of a line that several ranks log: time, rank, process or thread.
_VARYING = re.compile(
    rb"\[tfring\] (?P<time>[\d:.]+Z )?(?:rank \d+ )?(?:\(host [^)]*\) )?(?=[a-z]+: )|"
    rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|"
    rb"[IWEF]\d{4} [\d:.]+ +\d+ (?=[\w./-]+:\d+\])"
)


def without_info(lines: list[bytes]) -> list[bytes]:
    """Returns the lines less those that TensorFlow always logs."""
    return [line for line in lines if _INFO.match(line) is None]


def without_varying(line: bytes) -> bytes:
    """Returns what is equal in lines that several ranks log with their own times and names."""
    found = _VARYING.match(line)
    return line[:1] + line[found.end() :] if found else line


def without_rank(line: bytes) -> bytes:
    """Returns a line that stands for several ranks: a log line of tfring names none of them."""
    found = _VARYING.match(line)
    if found is None or not line.startswith(b"[tfring] "):
        return line
    return b"[tfring] " + (found["time"] or b"") + line[found.end() :]


def printable_length(text: bytes) -> int:
    """Returns the length of an unfinished line without an incomplete UTF-8 character at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-4:])
    return len(text) - len(decoder.getstate()[0])
