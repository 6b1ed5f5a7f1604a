"""Writes Chrome's trace format, which Perfetto and chrome://tracing show.

"Trace Event Format", Nat Duca and Dean Michael Maclean, Google 2016. Its times are microseconds;
three digits behind the point keep the nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_AT_ONCE = 1000


def replaced_file(path: Path) -> Path:
    """Returns the file that a new one at `path` replaces: the target of links.

    Raises:
        FileExistsError: It is a device or the like, which root could remove.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is no regular file, and a timeline would replace it")
    return path


class Trace:
    """Slices, marks and counters of several processes, each in lanes.

    A process is a number above 0: Perfetto takes process 0 for an idle CPU. Slices of one lane may
    be nested, the outer one added first, but must not overlap otherwise.

    Args:
        origin: Nanoseconds; this time is 0 in the file.
        facts: For the file's `otherData`.
    """

    def __init__(self, origin: int, facts: Mapping[str, Any]) -> None:
        self._origin = origin
        self._facts = dict(facts)
        self._events: list[Mapping[str, Any]] = []
        self._encoded: list[str] = []  # the events before these
        self._lanes: dict[tuple[int, str], int] = {}
        self._flows: dict[str, int] = {}
        self._overlapping = 0

    def process(self, process: int, name: str, labels: str = "") -> None:
        """Names a process; processes are shown by their numbers."""
        self._about(process, 0, "process_name", {"name": name})
        self._about(process, 0, "process_sort_index", {"sort_index": process})
        if labels:
            self._about(process, 0, "process_labels", {"labels": labels})

    def lane(self, process: int, name: str) -> int:
        """Returns the number of a lane; lanes are shown in the order in which they were made."""
        known = self._lanes.get((process, name))
        if known is not None:
            return known
        number = self._lanes[process, name] = len(self._lanes) + 1_000_001
        self._about(process, number, "thread_name", {"name": name})
        self._about(process, number, "thread_sort_index", {"sort_index": number})
        return number

    def slice(
        self,
        process: int,
        lane: int,
        name: str,
        begin: int,
        end: int,
        args: Mapping[str, Any] | None = None,
        flow_from: str = "",
        flow_to: str = "",
    ) -> None:
        """Adds something that took from `begin` to `end`, in nanoseconds.

        Args:
            process: The process.
            lane: Its lane.
            name: What the slice shows.
            begin: Its begin.
            end: Its end.
            args: More about it.
            flow_from: An arrow of this name begins here.
            flow_to: The arrow of this name ends here.
        """
        event = self._event("X", process, name, begin, tid=lane, dur=max(0, end - begin) / 1000)
        if args:
            event["args"] = args
        if flow_from or flow_to:
            number = self._flows.setdefault(flow_from or flow_to, len(self._flows) + 1)
            event["bind_id"] = hex(number)
            event["flow_out" if flow_from else "flow_in"] = True
        self._add(event)

    def overlapping(
        self,
        process: int,
        group: str,
        parts: Sequence[tuple[str, int, int]],
        args: Mapping[str, Any],
    ) -> None:
        """Adds a slice that may overlap others of its group, which has as many rows as it needs.

        Args:
            process: The process.
            group: The name of the rows.
            parts: Name, begin and end in nanoseconds of the slice, then of those inside it.
            args: More about it.
        """
        self._overlapping += 1
        more = {"tid": process, "cat": group, "id": hex(self._overlapping), "args": args}
        for name, begin, end in parts:
            self._add(self._event("b", process, name, begin, **more))
            self._add(self._event("e", process, name, end, **more))
            more.pop("args", None)

    def mark(self, process: int, lane: int, name: str, time: int, args: Mapping[str, Any]) -> None:
        """Adds something that happened at one time, in nanoseconds."""
        self._add(self._event("i", process, name, time, s="t", tid=lane, args=args))

    def counter(self, process: int, name: str, unit: str, time: int, value: int) -> None:
        """Sets a counter from a time, in nanoseconds, on."""
        self._add(self._event("C", process, name, time, args={unit: value}))

    def write(self, path: Path | str) -> None:
        """Writes the whole file or nothing, compressed if its name ends in .gz.

        Raises:
            OSError: It cannot be written, or is a device or the like.
        """
        path = replaced_file(Path(path))
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with gzip.open(beside, "wt", 5) if path.suffix == ".gz" else beside.open("w") as file:
                file.write('{"displayTimeUnit": "ms",\n"otherData": ')
                file.write(json.dumps(self._facts))
                file.write(',\n"traceEvents": [\n')
                self._encode()
                file.write(",\n".join(self._encoded))
                file.write("\n]}\n")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def _about(self, process: int, lane: int, name: str, args: Mapping[str, Any]) -> None:
        self._add({"ph": "M", "pid": process, "tid": lane, "name": name, "args": args})

    def _event(self, phase: str, process: int, name: str, time: int, **more: Any) -> dict[str, Any]:
        ts = (time - self._origin) / 1000
        return {"ph": phase, "pid": process, "name": name, "ts": ts, **more}

    def _add(self, event: Mapping[str, Any]) -> None:
        self._events.append(event)
        if len(self._events) == _AT_ONCE:
            self._encode()

    def _encode(self) -> None:
        """Encodes many events at once, which is faster and takes less memory."""
        if self._events:
            self._encoded.append(json.dumps(self._events)[1:-1])
            self._events = []
