"""The records of a job as PyTorch's flight recorder would have written them.

Its analyser, ``torchfrtrace`` (torch.distributed.flight_recorder), then finds calls that some ranks
did not make or that do not fit together. It reads pickles of plain values only, see
torch/csrc/distributed/c10d/FlightRecorder.hpp and the file loader.py of the analyser; nothing is
unpickled here.

PyTorch pairs calls of a process group by their order, tfring by their names. So the calls are put
into one order for all ranks here, in which those that belong together have the same number.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.process_sets import members_of_sets
from tfring.observe.recorder.reader import Call, Record

# Of the format: the newest that analysers of PyTorch 2.7 read as well as later ones.
_VERSION = "2.7"
# The prefix is PyTorch's own default. A name that its analyser does not know makes it give up.
_PREFIX = "nccl_trace_rank_"
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "barrier": "all_reduce_barrier",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send/recv": "",  # see _operation
}
_DTYPES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
# Of these the ranks may have different numbers of rows, which the analyser takes for an error.
_UNEVEN = ("allgather", "gather", "scatter", "alltoall")

# Process set, ranks of a send/recv, name, and the how manieth call of this name.
_Key = tuple[int, tuple[int, ...], str, int, int]


def write_torch_traces(job: JobRecords, folder: Path) -> list[Path]:
    """Writes a file for each rank that has a record.

    Joins and changes of process sets have no counterpart and are left out.

    Args:
        job: The records.
        folder: Where to; it is made if it is not there.

    Returns:
        The files: the folder is what ``torchfrtrace`` takes as its argument.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for rank, trace in torch_traces(job).items():
        files.append(folder / f"{_PREFIX}{rank}")
        files[-1].write_bytes(pickle.dumps(trace, protocol=2))
    return files


def torch_traces(job: JobRecords) -> dict[int, dict[str, Any]]:
    """Returns what is written for each rank.

    Args:
        job: The records.

    Returns:
        By rank, what ``torch._C._distributed_c10d._dump_nccl_trace`` would return unpickled.
    """
    members = members_of_sets(job)
    calls = {rank: dict(_keyed(record)) for rank, record in job.records.items()}
    numbers = _numbers(job, calls, members)
    rows = _rows(calls)
    traces = {}
    for rank, record in job.records.items():
        chosen = sorted((numbers[key], key) for key in calls[rank] if key in numbers)
        entries: list[dict[str, Any]] = []
        for number, key in chosen:
            call = calls[rank][key]
            entry = _entry(record, call, _shapes(call, rows[key]), members)
            entry.update(record_id=len(entries) + 1, op_id=number)
            entry.update(collective_seq_id=number, p2p_seq_id=number)
            entries.append(entry)
        traces[rank] = {
            "version": _VERSION,
            "nccl_version": "tfring",
            "pg_config": _groups(rank, entries, members),
            "pg_status": _status(entries),
            "entries": entries,
        }
    return traces


def _keyed(record: Record) -> Iterator[tuple[_Key, Call]]:
    """Yields the calls with what is the same for the calls of other ranks that belong to them."""
    seen: Counter[tuple[int, tuple[int, ...], str, int]] = Counter()
    for call in record.calls:
        if call.kind not in _OPERATIONS:
            continue
        pair = (call.root, call.peer) if call.kind == "send/recv" else ()
        key = (call.process_set, pair, call.name, call.invocation)
        seen[key] += 1  # several only where long names were cut
        yield (*key, seen[key]), call


def _numbers(
    job: JobRecords,
    calls: dict[int, dict[_Key, Call]],
    members: dict[int, tuple[int, ...]],
) -> dict[_Key, int]:
    """Numbers the calls in the order in which they ran, and after these those that wait."""
    ranks: dict[_Key, dict[int, Call]] = defaultdict(dict)
    for rank, own in calls.items():
        for key, call in own.items():
            ranks[key][rank] = call
    order = []
    for key, made in ranks.items():
        sequence = max(call.sequence for call in made.values())
        expected = set(key[1] or members[key[0]]) & set(calls)
        if sequence and expected - set(made):
            continue  # all ranks have called it, and one has overwritten it since
        first = min(job.common(rank, call.submitted) for rank, call in made.items())
        order.append((sequence == 0, sequence, first, key))
    return {key: number for number, (*_, key) in enumerate(sorted(order), 1)}


def _rows(calls: dict[int, dict[_Key, Call]]) -> dict[_Key, list[int]]:
    """Returns the rows of each tensor on the lowest rank that made the call."""
    rows: dict[_Key, list[int]] = {}
    for _, own in sorted(calls.items()):
        for key, call in own.items():
            rows.setdefault(key, [shape[0] if shape else 0 for shape in call.shapes])
    return rows


def _shapes(call: Call, rows: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the sizes of inputs, and of outputs but for the number of ranks."""
    if call.kind == "barrier":
        return [[1]], [[1]]
    sizes = [list(shape) for shape in call.shapes]
    if call.kind in _UNEVEN:
        for size, first in zip(sizes, rows, strict=False):
            size[:1] = [first]
    return sizes, [list(size) for size in sizes]


def _entry(
    record: Record,
    call: Call,
    sizes: tuple[list[list[int]], list[list[int]]],
    members: dict[int, tuple[int, ...]],
) -> dict[str, Any]:
    inputs, outputs = sizes
    ranks = len(members[call.process_set])
    for into, out in zip(inputs, outputs, strict=True):
        if call.kind == "allgather" and out:
            out[0] *= ranks
        elif call.kind == "reducescatter" and out:
            out[0] = -(-out[0] // ranks)  # the format knows equal parts only
            into[0] = out[0] * ranks
    dtypes = [_DTYPES.get(call.dtype, call.dtype)]
    wall = record.header["started_wall"] - record.header["started_monotonic"]
    filename, _, line = call.call_site.rpartition(":")
    done = call.ended != 0 and call.status == "OK"
    return {
        "pg_id": call.process_set,
        "process_group": _group(call),
        "profiling_name": f"nccl:{_operation(call, record.rank)}",
        "is_p2p": call.kind == "send/recv",
        "input_sizes": inputs,
        "output_sizes": outputs,
        "input_dtypes": dtypes,
        "output_dtypes": dtypes,
        "time_created_ns": wall + call.submitted,
        "time_discovered_started_ns": wall + call.planned if call.planned else None,
        "time_discovered_completed_ns": wall + call.ended if done else None,
        "duration_ms": (call.ended - call.planned) / 1e6 if done else None,
        "state": "completed" if done else "started" if call.planned else "scheduled",
        "retired": call.ended != 0,
        "timeout_ms": 0,
        "frames": [
            {
                "name": f"tensor '{call.name}'",
                "filename": filename or "?",
                "line": int(line) if line.isdigit() else 0,
            }
        ],
    }


def _group(call: Call) -> tuple[str, str]:
    """Returns a process group's name and description; a send/recv has one of its two ranks."""
    if call.kind == "send/recv":
        return f"{call.process_set}.{call.root}.{call.peer}", "send/recv"
    return str(call.process_set), "default_pg" if call.process_set == 0 else "process set"


def _operation(call: Call, rank: int) -> str:
    if call.kind != "send/recv":
        return _OPERATIONS[call.kind]
    # Positions in a group of the two.
    source, to = (0, 1) if call.root < call.peer else (1, 0)
    return f"send {source}->{to}" if rank == call.root else f"recv {to}<-{source}"


def _groups(
    rank: int, entries: list[dict[str, Any]], members: dict[int, tuple[int, ...]]
) -> dict[str, dict[str, str]]:
    """Returns the process groups that the rank is in."""
    groups = {
        str(number): {
            "name": str(number),
            "desc": "default_pg" if number == 0 else "process set",
            "ranks": str(list(ranks)),
        }
        for number, ranks in members.items()
        if rank in ranks
    }
    for name, description in {entry["process_group"] for entry in entries if entry["is_p2p"]}:
        pair = sorted(int(part) for part in name.split(".")[1:])
        groups[name] = {"name": name, "desc": description, "ranks": str(pair)}
    return groups


def _status(entries: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the newest number of each process group, as far as calls came; -1: of none."""
    status: dict[str, dict[str, int]] = {}
    for entry in entries:
        number = entry["collective_seq_id"]
        own = status.setdefault(
            entry["process_group"][0],
            {f"last_{how}_collective": -1 for how in ("enqueued", "started", "completed")},
        )
        own["last_enqueued_collective"] = number
        if entry["state"] != "scheduled":
            own["last_started_collective"] = number
        if entry["state"] == "completed":
            own["last_completed_collective"] = number
    return status
