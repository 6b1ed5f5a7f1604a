"""Processor time of `tfring run` and its agents per MB of the ranks' output.

    python -m benchmarks.launcher_output --megabytes 200

Two ranks write lines of 100 bytes as fast as the launcher takes them. The processor time of a job
without output, and that of the ranks themselves, do not count. `cat` moves the same bytes
once, from one pipe into another.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import Goal, Report, parser

RANKS = 2
LIMIT_SECONDS_PER_MB = 0.05
LINES_PER_MB = 10_000
# Arguments: the number of MB, the stream's descriptor, how the lines end, and a file for the time.
PROGRAM = """
import os, sys, time
megabytes, fd, kind, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
rank = "same" if kind == "equal" else os.environ.get("TFRING_X_RANK", "")
end = "\\r\\n" if kind == "crlf" else "\\n"
lines = [f"{rank} {number} ".ljust(100 - len(end), "x") + end for number in range(10_000)]
block = "".join(lines).encode()
begin, longest = time.process_time(), 0.0
for _ in range(megabytes):
    left = memoryview(block)
    while left:
        before = time.monotonic()
        left = left[os.write(fd, left[:4096]):]
        longest = max(longest, time.monotonic() - before)
with open(f"{path}.{rank or 0}.{os.getpid()}", "w") as file:
    file.write(f"{time.process_time() - begin} {longest}")
"""
KINDS = {
    "stdout": (1, "lf", ()),
    "stderr": (2, "lf", ()),
    "equal lines": (1, "equal", ()),
    "carriage returns": (1, "crlf", ()),
    "no merging": (1, "lf", ("--no-merge-lines",)),
    "files": (1, "lf", ("--output-filename",)),
}


def processor_seconds(command: list[str], lines: int) -> float:
    """Returns the processor time of a command and its waited-for children.

    Raises:
        RuntimeError: It failed, or printed fewer lines.
    """
    reader = subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process = subprocess.Popen(command, stdout=reader.stdin, stderr=reader.stdin)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    printed = int(reader.communicate()[0])
    if process.returncode != 0 or printed < lines:
        raise RuntimeError(
            f"{' '.join(command[2:6])} ended with {process.returncode} and printed {printed} of "
            f"{lines} lines"
        )
    return usage.ru_utime + usage.ru_stime


def measure(kind: str, megabytes: int, folder: Path) -> tuple[float, float]:
    """Returns the processor time of a job without that of its ranks, and the longest write."""
    fd, ends, options = KINDS[kind]
    more = [*options, str(folder / "out")] if "--output-filename" in options else list(options)
    command = [sys.executable, "-m", "tfring", "run", "-np", str(RANKS), *more]
    each = str(megabytes // RANKS)
    path = folder / "rank"
    program = [sys.executable, "-c", PROGRAM, each, str(fd), ends, str(path)]
    # Some lines of both ranks are printed once.
    lines = megabytes * LINES_PER_MB // (2 if ends == "equal" else 1)
    spent = processor_seconds([*command, *program], lines)
    told = [file.read_text().split() for file in folder.glob("rank.*")]
    for file in folder.glob("rank.*"):
        file.unlink()
    return spent - sum(float(one[0]) for one in told), max(float(one[1]) for one in told)


def cat_seconds(megabytes: int) -> float:
    """Returns the processor time of `cat` between two pipes."""
    source = subprocess.Popen(
        ["head", "-c", f"{megabytes}000000", "/dev/zero"], stdout=subprocess.PIPE
    )
    sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(["cat"], stdin=source.stdout, stdout=sink.stdin)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    source.communicate()
    sink.communicate()
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--megabytes", type=int, default=200)
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = made.parse_args()
    report = Report("launcher_output", RANKS)
    cat = cat_seconds(arguments.megabytes) / arguments.megabytes
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.kinds:
            nothing, _ = measure(kind, 0, Path(folder))
            spent, longest = measure(kind, arguments.megabytes, Path(folder))
            each = (spent - nothing) / arguments.megabytes
            report.rows.append(
                {"lines": kind, "s/MB": each, "times cat": each / cat, "longest write s": longest}
            )
            report.goals.append(Goal(f"{kind}: processor s/MB", each, LIMIT_SECONDS_PER_MB))
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
