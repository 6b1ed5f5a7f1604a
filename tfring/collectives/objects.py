"""Sends Python objects between ranks.

Objects are pickled, and unpickled by the ranks that receive them. So the ranks of a job must trust
each other, as always with pickle. They need to trust nobody else: bytes are unpickled only if their
MAC proves that a rank of this job sent them here and now. The library itself exchanges JSON.
Blocking, and outside of any graph.
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

    The object is pickled, so the ranks have to trust the root. Whoever controls the root's object,
    or knows the job's secret, can run code on all ranks. Others cannot, even if they can change the
    traffic.

    Args:
        obj: anything that cloudpickle can pickle; ignored on the other ranks.
        root_rank: the rank whose object all get; a world rank, also within a process set.
        session: a TF1 session, accepted for Horovod scripts; not needed.
        name: start of the collectives' names; by default all calls share one name.
        process_set: the ranks that take part; None means all.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.FailedPreconditionError: tfring is not initialized, the ranks' roots differ, or
            another thread also makes calls without a name.
        RuntimeError: the root could not pickle its object (on the root: the pickler's own error, or
            a TypeError that names the entry of a dictionary), or the received bytes are not the
            root's.
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

    Leaves out ranks that have joined. The objects are pickled, so the ranks have to trust each
    other: each can run code on all. Others cannot, even if they can change the traffic.

    Args:
        obj: anything that cloudpickle can pickle.
        session: a TF1 session, accepted for Horovod scripts; not needed.
        name: start of the collectives' names.
        process_set: the ranks that take part; None means all.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.FailedPreconditionError: tfring is not initialized, or another thread also makes
            calls without a name.
        RuntimeError: a rank could not pickle its object (on that rank: the pickler's own error), or
            the received bytes are not that rank's.
    """
    del session
    set_id = process_sets.checked_id(process_set)
    name = name or _default_name("allgather_object", set_id)
    return [pickle.loads(data) for data in _allgather(cloudpickle.dumps, obj, name, set_id)]


def allgather_json(value: Any, name: str) -> list[Any]:
    """Returns the list of every rank's value, in rank order. For internal use: no pickle.

    Leaves out ranks that have joined.

    Args:
        value: any JSON value. Tuples come back as lists, keys as text.
        name: start of the collectives' names.

    Raises:
        tf.errors.FailedPreconditionError: tfring is not initialized.
        RuntimeError: the received bytes are not a rank's own.
    """
    return [json.loads(data) for data in _allgather(_to_json, value, name, 0)]


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_python_number).encode()


def _python_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be encoded as JSON")


def _allgather(encode: Callable[[Any], bytes], value: Any, name: str, set_id: int) -> list[bytes]:
    """Returns every rank's encoded value, in rank order, after checking all MACs."""
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
    """Returns one name for all calls of a kind, which must come from one thread."""
    if is_initialized():
        names.count_in_one_thread(kind, set_id)
    return f"tfring.{kind}"


def _signed(encode: Callable[[Any], bytes], obj: Any, label: str) -> tuple[Any, Exception | None]:
    """Returns the object's bytes with our MAC; or empty bytes and the error."""
    try:
        data = encode(obj)
        if is_initialized():  # otherwise the collective that follows raises
            data = generation.sign(data, label, rank())
        return np.frombuffer(data, dtype=np.uint8), None
    except Exception as error:
        return np.empty(0, dtype=np.uint8), error


def _of_an_entry(entries: dict[Any, Any], failure: Exception) -> Exception:
    """Returns an error that names the first entry that cannot be pickled; otherwise `failure`."""
    for name, value in entries.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # pickling runs code of the value's class
            found = TypeError(
                f"rank {rank()}: {name!r} is a {type(value).__name__}, which cannot be sent to "
                f"other ranks ({described(error)}). Leave it out. If it is an attribute of an "
                "elastic state, give it state_dict and load_state_dict"
            )
            found.__cause__ = failure
            return found
    return failure


def _refuse_failed(sizes: Sequence[int], failure: Exception | None, ranks: Sequence[int]) -> None:
    """Raises on every rank if one of them could not pickle its object, so no rank waits."""
    if failure is not None:
        raise failure
    failed = [str(r) for r, size in zip(ranks, sizes, strict=True) if size == _FAILED]
    if failed:
        raise RuntimeError(
            f"rank {rank()}: rank {', '.join(failed)} could not pickle its object; see the error "
            "there"
        )


def _broadcast(array: Any, name: str, root: int, process_set: int) -> Any:
    _native.note_call_site()
    return _native.core.broadcast(array, name=name, root=root, process_set=process_set)
