"""Sends Python objects between ranks.

Objects are pickled, and unpickled by the ranks that receive them: as everywhere with pickle, the
ranks of a job must trust each other. Nobody else has to be trusted: what comes is unpickled only if
its MAC proves that a rank of this job sent it here and now. What the library itself exchanges is
JSON. Blocking, and outside of any graph.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from tfring.job.security import generation
from tfring.ops import names
from tfring.runtime import _native, process_sets
from tfring.runtime.exceptions import described, tf_errors
from tfring.runtime.topology import is_initialized, rank

_FAILED = -1  # sent in place of a size


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Returns the root's `obj` on every rank; the root gets its own object back.

    It is pickled, so the ranks have to trust the root: who decides what the root sends, or knows
    the job's secret, can run code on all of them. Others cannot, also not on the way.

    Args:
        obj: anything that cloudpickle can pickle; ignored on the other ranks.
        root_rank: whose object all get: a rank of the whole job, also within a process set.
        session: a TF1 session, for Horovod's sake; it is not needed.
        name: what the collectives are named after; by default all calls share one name.
        process_set: the ranks that take part; None is all.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks name other roots, or
            another thread, too, makes calls without a name.
        RuntimeError: The root could not pickle its object (on the root the pickler's own error, or
            a TypeError that names the entry of a dictionary), or what came is not the root's.
    """
    del session
    set_id = process_sets.checked_id(process_set)
    name = name or _default_name("broadcast_object", set_id)
    label = f"{name} in process set {set_id}"
    mine = rank() == root_rank if is_initialized() else False
    nothing = np.empty(0, dtype=np.uint8)
    payload, failure = _signed(cloudpickle.dumps, obj, label) if mine else (nothing, None)
    if failure is not None and isinstance(obj, dict):
        failure = _of_an_entry(obj, failure)
    with tf_errors():
        length = np.array([_FAILED if failure else payload.size], dtype=np.int64)
        size = int(_broadcast(length, f"{name}.size", root_rank, set_id)[0])
        _refuse_failed([size], failure, [root_rank])
        if not mine:
            payload = np.empty(size, dtype=np.uint8)
        received = _broadcast(payload, f"{name}.data", root_rank, set_id)
    if mine:
        return obj
    return pickle.loads(generation.verify(received.tobytes(), label, root_rank))


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = None
) -> Callable[[Any], Any]:
    """Returns a function of one object that calls `broadcast_object` with these arguments."""
    process_sets.checked_id(process_set)

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name=name, process_set=process_set)

    return broadcast


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = None
) -> list[Any]:
    """Returns the list of every rank's `obj`, in rank order.

    Ranks that have joined are left out. The objects are pickled, so the ranks have to trust each
    other: each can run code on all. Others cannot, also not on the way.

    Args:
        obj: anything that cloudpickle can pickle.
        session: a TF1 session, for Horovod's sake; it is not needed.
        name: what the collectives are named after.
        process_set: the ranks that take part; None is all.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.FailedPreconditionError: tfring is not initialized, or another thread, too, makes
            calls without a name.
        RuntimeError: A rank could not pickle its object (on that rank the pickler's own error), or
            what came is not that rank's.
    """
    del session
    set_id = process_sets.checked_id(process_set)
    name = name or _default_name("allgather_object", set_id)
    return [pickle.loads(data) for data in _allgather(cloudpickle.dumps, obj, name, set_id)]


def allgather_json(value: Any, name: str) -> list[Any]:
    """Returns the list of every rank's value, in rank order. For the library's own use: no pickle.

    Ranks that have joined are left out.

    Args:
        value: anything that JSON can hold. Tuples come back as lists, keys as text.
        name: what the collectives are named after.

    Raises:
        tf.errors.FailedPreconditionError: tfring is not initialized.
        RuntimeError: what came is not a rank's own.
    """
    return [json.loads(data) for data in _allgather(_to_json, value, name, 0)]


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_python_number).encode()


def _python_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is nothing that JSON can hold")


def _allgather(encode: Callable[[Any], bytes], value: Any, name: str, set_id: int) -> list[bytes]:
    """Returns every rank's encoded value, in rank order; the MACs of all are right."""
    label = f"{name} in process set {set_id}"
    payload, failure = _signed(encode, value, label)
    with tf_errors():
        header = np.array([[rank(), _FAILED if failure else payload.size]], dtype=np.int64)
        _native.note_call_site()
        headers = _native.core.allgather(header, name=f"{name}.size", process_set=set_id)
        ranks, sizes = headers.T.tolist()
        _refuse_failed(sizes, failure, ranks)
        _native.note_call_site()
        data = _native.core.allgather(payload, name=f"{name}.data", process_set=set_id)
    ends = np.cumsum(sizes)
    return [
        generation.verify(data[end - n : end].tobytes(), label, sender)
        for sender, n, end in zip(ranks, sizes, ends, strict=True)
    ]


def _default_name(kind: str, set_id: int) -> str:
    """One name for all calls of a kind, which therefore have to come from one thread."""
    if is_initialized():
        names.count_in_one_thread(kind, set_id)
    return f"tfring.{kind}"


def _signed(encode: Callable[[Any], bytes], obj: Any, label: str) -> tuple[Any, Exception | None]:
    """Returns the object's bytes with our MAC; or none and the error that prevents it."""
    try:
        data = encode(obj)
        if is_initialized():  # else the collective that follows raises
            data = generation.sign(data, label, rank())
        return np.frombuffer(data, dtype=np.uint8), None
    except Exception as error:
        return np.empty(0, dtype=np.uint8), error


def _of_an_entry(entries: dict[Any, Any], failure: Exception) -> Exception:
    """Returns an error that names the first entry that cannot be pickled; else `failure`."""
    for name, value in entries.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # a value is pickled by code of its class
            found = TypeError(
                f"rank {rank()}: {name!r} is a {type(value).__name__}, which cannot be sent to the "
                f"other ranks ({described(error)}). Leave it out; as an attribute of an elastic "
                "state it may have state_dict and load_state_dict instead"
            )
            found.__cause__ = failure
            return found
    return failure


def _refuse_failed(sizes: Sequence[int], failure: Exception | None, ranks: Sequence[int]) -> None:
    """Raises on every rank if one of them could not pickle its object, so that no rank waits."""
    if failure is not None:
        raise failure
    failed = [str(r) for r, size in zip(ranks, sizes, strict=True) if size == _FAILED]
    if failed:
        raise RuntimeError(
            f"rank {rank()}: rank {', '.join(failed)} could not pickle the object that it was "
            "to send; see the error there"
        )


def _broadcast(array: Any, name: str, root: int, process_set: int) -> Any:
    _native.note_call_site()
    return _native.core.broadcast(array, name=name, root=root, process_set=process_set)
