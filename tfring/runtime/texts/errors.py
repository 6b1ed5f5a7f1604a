"""Reads what a Python program printed when it failed: the error, the program's line, the frames."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.runtime.texts.frames import FRAME, MARKS, fold_frames, is_users, place

HEADER = "Traceback (most recent call last):"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# A line such as "ValueError: no such file" or "KeyboardInterrupt".
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
# Python writes no header for a program that it cannot compile.
_SYNTAX = re.compile(r'^(  File ".*", line \d+)\n(?:.*\n){0,3}(\w*Error): (.*)\Z', re.MULTILINE)
# Other lines that a process writes after its traceback.
_LOGGED = re.compile(
    r"\[tfring\] |[IWEF]\d{4} [\d:.]+ |\d{4}-\d\d-\d\d[ T]\d\d:|Exception ignored in|"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|.*Warning: "
)
# Lines that only TensorFlow and this runtime write.
_NOISE = re.compile(r"\[tfring\] |[IWEF]\d{4} [\d:.]+ |\d{4}-\d\d-\d\d [\d:.]+: [IWEF] ")
# Colours, titles and other commands to a terminal.
_ESCAPES = re.compile(
    r"\x1b\[[\d;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0e-\x1f\x7f]"
)
# The traceback behind this line did not end the program.
_IGNORED = "Exception ignored in"
# What TensorFlow puts around the text of an error.
_AROUND = re.compile(
    r"\{\{function_node [^}]*\}\}\s*|\s*\[Op:[^\]]*\](?: name: ?\S*)?|\s*\[\[\{\{node [^\]]*\]\]|"
    r"^Graph execution error:\s*|^\d+ root error\(s\) found\.\s*|^\(0\) [A-Z_]+: "
)
_KERAS = re.compile(r"Exception encountered when calling ")
# TensorFlow's text of an error within a graph: the traceback of a Python function follows.
_IN_GRAPH = "Graph execution error:"
# Some errors begin with their rank, which the reader of the error adds again.
_RANK = re.compile(r"^rank \d+: ")
# What to do about errors, by the beginning of their lines.
_ADVICE = {
    "ModuleNotFoundError: No module named 'horovod'": (
        "Start the program with tfring run --horovod, and tfring stands in for horovod."
    ),
    "ModuleNotFoundError: No module named": (
        "Install it for the Python of each host, or name its folder in PYTHONPATH."
    ),
    **dict.fromkeys(
        ("MemoryError", "_ArrayMemoryError", "ResourceExhaustedError"),
        "Use a smaller batch or model, or give the job more memory.",
    ),
}
# The runtime's errors name the rank that caused them in these words.
CAUSED_BY = re.compile(
    r"rank (\d+) (?:\([^)]*\) )?(?:was lost|has shut down|ended with an exception)"
)
# Errors of calls that end because another rank failed, and of interrupted ranks.
_FOLLOWS = ("CancelledError", "AbortedError", "UnavailableError", "KeyboardInterrupt")
_MOST_TEXT = 600
_MOST_LINES = 24


@dataclass(frozen=True)
class ProgramError:
    """An exception that ended a program.

    Attributes:
        kind: Its class, without the module.
        text: Its message, in one line.
        place: The innermost line of the program, as "train.py:38 (on_train_batch_end)"; "": none.
        frames: The traceback, with those of the exceptions before it, without the exception's line;
            frames of TensorFlow, Keras and tfring are folded.
    """

    kind: str
    text: str
    place: str
    frames: tuple[str, ...]

    @property
    def follows(self) -> bool:
        """Whether it only says that another rank has failed, or that it was interrupted."""
        return follows(self.line())

    @property
    def advice(self) -> str:
        """What to do about it, if its text does not say so; else ""."""
        line = self.line()
        return next((text for begin, text in _ADVICE.items() if line.startswith(begin)), "")

    def line(self) -> str:
        """Returns "KeyError: 'image_id'"."""
        return f"{self.kind}: {self.text}" if self.text else self.kind

    def sentence(self, who: str, line: str = "") -> str:
        """Returns "Rank 1 failed in train.py:38 (fit): KeyError: 'x'", as a sentence.

        Args:
            who: The rank or ranks.
            line: In place of the error's own.
        """
        where = f" in {self.place}" if self.place else ""
        line = line or self.line()
        return f"{who} failed{where}: {line}{'' if line.endswith(('.', '!', '?')) else '.'}"


def of_any_rank(line: str, rank: int) -> str:
    """Returns an error without the rank that reports it, to compare errors of ranks.

    If it names other ranks, too, only a "rank 1: " at its beginning goes.
    """
    line = re.sub(rf"^((?:\w+: )?)rank {rank}: ", r"\1", line)
    if {int(other) for other in re.findall(r"\b[Rr]ank (\d+)\b", line)} != {rank}:
        return line
    return re.sub(rf"\b[Rr]ank {rank}\b(?:: )?", "", line)


def follows(line: str) -> bool:
    """Tells whether an error only says that another rank has failed, or that it was interrupted."""
    return line.startswith(_FOLLOWS) or CAUSED_BY.search(line) is not None


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Returns the last traceback in an error output, with its causes and all behind; [] if none."""
    headers = _headers(lines)
    if not headers:
        return []
    begin = len(headers) - 1
    while begin > 0 and any(
        line.strip() in _CHAINS or line.endswith(_IN_GRAPH)
        for line in lines[headers[begin - 1] : headers[begin]]
    ):
        begin -= 1
    return list(lines[headers[begin] :])


def _headers(lines: Sequence[str]) -> list[int]:
    """Returns where tracebacks begin, except those of exceptions that Python ignores."""
    return [
        i
        for i, line in enumerate(lines)
        if line == HEADER and not (i and lines[i - 1].startswith(_IGNORED))
    ]


def is_noise(output: str) -> bool:
    """Tells whether only TensorFlow's C++ code and this runtime log these lines."""
    return all(_NOISE.match(line) for line in output.splitlines())


def around_error(output: str) -> tuple[str, str]:
    """Returns the texts before and behind the last traceback of an output; "" without one.

    What the runtime and TensorFlow log behind it is left out.
    """
    whole = output.splitlines(keepends=True)
    lines = [line.rstrip("\r\n") for line in whole]
    block = last_traceback(lines)
    if not block:
        return "", ""
    _, said = _at_exception(block[_headers(block)[-1] + 1 :])
    end = next((i for i, line in enumerate(said[1:], 1) if _LOGGED.match(line)), len(said))
    behind = whole[len(whole) - len(said) + end :]
    before = whole[: len(whole) - len(block)]
    return "".join(before), "".join(line for line in behind if not is_noise(line))


def read_error(output: str) -> ProgramError | None:
    """Returns the exception at the end of an error output, which may begin anywhere."""
    block = last_traceback(output.rstrip().splitlines())
    if not block:
        broken = _SYNTAX.search(output.rstrip())
        return ProgramError(broken[2], broken[3], _place([broken[1]]), ()) if broken else None
    last = _headers(block)[-1] + 1
    frames, said = _at_exception(block[last:])
    found = _EXCEPTION.fullmatch(said[0]) if said else None
    if found is None:
        return None
    end = next((i for i, line in enumerate(said[1:], 1) if _LOGGED.match(line)), len(said))
    text = [_RANK.sub("", found[2] or ""), *said[1:end]]
    before, outer = _at_exception(block[1:last])
    frames = before + ([] if outer and outer[0].endswith(_IN_GRAPH) else outer) + frames
    kind = found[1].rpartition(".")[2]
    if text[0] == "in user code:":  # of autograph, with a traceback of its own
        inner, text = _at_exception(textwrap.dedent("\n".join(text[1:])).splitlines())
        frames += [f"  {line}" for line in inner]
        text[:1] = [text[0].removeprefix(f"{kind}: ")] if text else []
    return ProgramError(
        kind,
        one_line("\n".join(text)),
        _place(frames),
        tuple(_shortened(list(fold_frames(frames)))),
    )


def _at_exception(lines: list[str]) -> tuple[list[str], list[str]]:
    """Returns the frames of a traceback, and the exception's line with all behind it."""
    for i, line in enumerate(lines):
        if line and not line.startswith((" ", 'File "')) and not MARKS.match(line):
            return lines[:i], lines[i:]
    return lines, []


def one_line(text: str, most: int = _MOST_TEXT) -> str:
    """Returns the message of an exception in one line, without what TensorFlow adds.

    Args:
        text: As `str` of the exception.
        most: The largest number of characters; " [...]" stands for what is left out.
    """
    lines = [_ESCAPES.sub("", line).strip() for line in text.strip().splitlines()]
    lines = [
        line
        for line in lines
        if not line.startswith(('File "', "Detected at node", "[[{{node", "<...>"))
    ]
    if lines and _KERAS.match(lines[0]):
        end = next((i for i, line in enumerate(lines) if line.startswith("Arguments rec")), None)
        lines = lines[1:end]
    said = " ".join(" ".join(lines).split())
    before = ""
    while said != before:
        before, said = said, _AROUND.sub("", said)
    if len(said) > most:
        said = f"{said[:most].rpartition(' ')[0] or said[:most]} [...]"
    return said.strip()


def _place(frames: Sequence[str]) -> str:
    for text in reversed(frames):
        frame = FRAME.match(text)
        if frame is not None and is_users(frame[2]):
            line = f"{frame[2].rpartition('/')[2]}:{frame[3]}"
            if "/ipykernel_" in frame[2]:
                line = f"line {frame[3]} of a cell"
            return place(line, frame[4])
    return ""


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    first, last = _MOST_LINES // 3, _MOST_LINES - _MOST_LINES // 3 - 1
    left = len(lines) - first - last
    return [*lines[:first], f"  ... {left} lines", *lines[-last:]]
