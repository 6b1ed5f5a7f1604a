"""save_checkpoint and restore_checkpoint: the training state of all ranks, in one checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import operator
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfring.checkpoint import Checkpointer, CheckpointTimeoutError
from tfring.checkpoint.manifest import as_json
from tfring.checkpoint.shares import Share, balanced
from tfring.collectives import objects
from tfring.keras.agreement import exchange, while_others_wait
from tfring.keras.callbacks.checkpoints import boundary
from tfring.keras.callbacks.checkpoints.contents import TRAINING, Contents
from tfring.keras.callbacks.checkpoints.memory import Memory, has_ended
from tfring.keras.callbacks.checkpoints.rank_state import EpochMetrics, RankState
from tfring.keras.callbacks.checkpoints.reading import RANK, Reading
from tfring.keras.model_optimizers import hooks_of
from tfring.ops import arguments
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors
from tfring.runtime.signals.termination import seconds_left
from tfring.training import weights

_log = logging.getLogger("tfring")
_SAVE, _WRITERS = "tfring.checkpoint.save", "tfring.checkpoint.writers"
_LISTED = 3  # variables in a warning


@dataclasses.dataclass(frozen=True)
class TrainingPosition:
    """Where a checkpoint was taken.

    Attributes:
        epoch: the next epoch, or the one that is not finished, counted from 0.
        batch: how many batches of that epoch had been trained.
        step: how many steps had been trained in all.
        generation: the generation of the job that saved it.
        values: the program's own values.
        stopped: whether a callback had ended training for good, as EarlyStopping does.
        memory: the states of callbacks: `memory.give_back(callbacks)` restores them.
        metrics: this rank's metrics of the epoch; None at its beginning, or if they are not known.
    """

    epoch: int
    batch: int
    step: int
    generation: int
    values: Mapping[str, Any]
    stopped: bool = False
    memory: Memory = dataclasses.field(default_factory=Memory, repr=False)
    metrics: EpochMetrics | None = dataclasses.field(default=None, repr=False)


def save_checkpoint(
    checkpoints: Checkpointer,
    model: Any,
    *,
    step: int,
    epoch: int = 0,
    batch: int = 0,
    generation: int | None = None,
    optimizer: Any = None,
    cursor: Any = None,
    values: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    local_variables: Sequence[Any] = (),
    callbacks: Sequence[Any] = (),
    leaves: bool = False,
    must: bool = False,
    may_publish: Callable[[], bool] | None = None,
) -> bool:
    """Saves weights, optimizers and the position of training; a collective of all ranks.

    Each rank that sees the folder of rank 0 writes a share of the variables. Rank 0 also writes the
    random states, metrics of the epoch and data cursor of each rank, from one small collective.
    While a rank still writes an earlier checkpoint nothing is saved; see `Checkpointer.save`. Call
    it where optimizers have no accumulated gradients: these are not kept.

    Args:
        checkpoints: where to save, the same on every rank.
        model: a built model, the same on all ranks.
        step: how many steps are trained, as `optimizer.iterations`; that of rank 0 counts.
        epoch: the next epoch after a restart, or the one that is not finished, counted from 0.
        batch: how many batches of it have been trained.
        generation: of the job that saves; None as in `Checkpointer.save`.
        optimizer: one that cannot be reached from the model, as in a loop of the user's.
        cursor: which data comes next, as in CheckpointCallback.
        values: more to keep, which JSON can hold; those of rank 0 count.
        metrics: they choose the best checkpoints, which are kept.
        local_variables: a rank's own variables of the model, which are left out.
        callbacks: whose states are kept; those of rank 0 count.
        leaves: whether this rank is about to leave others. It then writes only if it is rank 0 or
            no rank stays, so it need not wait for the storage.
        must: as in `Checkpointer.save`.
        may_publish: as in `Checkpointer.save`.

    Returns:
        Whether it is saved and not skipped; the same on every rank.

    Raises:
        RuntimeError: a rank cannot save, or could not write an earlier checkpoint; on every rank.
        TypeError: checkpoints is no Checkpointer, or step is no whole number.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("save_checkpoint")
    step = _checked_step(checkpoints, step)
    contents = Contents(model, optimizer, local_variables)
    own, memory = RankState(model, cursor, within_epoch=batch > 0), Memory()
    generation = reserve(checkpoints, again=False) if generation is None else generation

    def of_rank_0() -> dict[str, Any]:
        nonlocal memory
        as_json(dict(values or {}), "values")
        if must or checkpoints.trouble or not checkpoints.busy:  # else it is skipped
            memory = Memory.of(callbacks)
        return _of_root(checkpoints, generation, step)

    ranks = _of_all_ranks(checkpoints, own, of_rank_0, leaves)
    ended = has_ended(model, callbacks)
    training = {"epoch": epoch, "batch": batch, "stopped": ended, "values": dict(values or {})}
    training |= {"built": contents.built(), "ranks": len(ranks), "scales": _scales_of(model)}
    writers = _able_writers(checkpoints, ranks)
    if any(ranks[rank]["busy"] for rank in writers) and not must:
        checkpoints.skip(step)
        return False
    waits = must or not checkpoints.asynchronous
    write = _share_to_write(checkpoints, contents, ranks, writers, memory, training)
    if write is not None:
        write = functools.partial(write, metrics=metrics, may_publish=may_publish, must=waits)
    _write(checkpoints, write, waits)
    return True


def _checked_step(checkpoints: Any, step: Any) -> int:
    if not isinstance(checkpoints, Checkpointer):
        raise TypeError(
            f"save_checkpoint needs a Checkpointer, which you make once, not {checkpoints!r}: "
            "checkpoints = tfring.checkpoint.Checkpointer(folder)"
        )
    return operator.index(step.numpy() if hasattr(step, "numpy") else step)


def _share_to_write(
    checkpoints: Checkpointer,
    contents: Contents,
    ranks: Sequence[Any],
    writers: Sequence[int],
    memory: Memory,
    training: Mapping[str, Any],
) -> Callable[..., Any] | None:
    """Returns a function that saves this rank's share, or None.

    It is a collective: all ranks must call it.
    """
    left = [each["left"] for each in ranks if each["left"] is not None]
    checkpoints.hurry(min(left, default=None))
    me, root = topology.rank(), ranks[0]["root"]
    if writers[0] != 0:
        memory, training = _told_by_rank_0(memory, training)
    parts = balanced(contents.sizes(), len(writers))
    whole = contents.gathered(dict(zip(writers, parts, strict=True)))
    if me not in writers:
        if ranks[me]["trouble"]:
            _let_others_write(checkpoints, ranks[me]["trouble"])
        else:
            checkpoints.give_up()  # what the others save fences it
        return None
    share = Share(root["data"], writers.index(me), len(writers))
    state, metadata = contents.arrays(parts[share.index], whole), {}
    if share.index == 0:
        _warn_of(contents.local)
        metadata = {TRAINING: training}
        owns = {RANK.format(i): json.dumps(each["own"]).encode() for i, each in enumerate(ranks)}
        state = {**state, **memory.parts(), **owns}
    place = (root["step"], root["generation"])
    return functools.partial(checkpoints.save, state, *place, metadata=metadata, share=share)


def _told_by_rank_0(
    memory: Memory, training: Mapping[str, Any]
) -> tuple[Memory, Mapping[str, Any]]:
    """Returns what rank 0 would write, where its storage fails; a collective."""
    mine = [memory.described(), training] if topology.rank() == 0 else None
    described, training = objects.allgather_json(mine, name=_SAVE)[0]
    return _of_rank_0(memory, described), training


def restore_checkpoint(
    checkpoints: Any,
    model: Any,
    *,
    name: str | None = None,
    optimizer: Any = None,
    cursor: Any = None,
    local_variables: Sequence[Any] = (),
) -> TrainingPosition | None:
    """Gives all ranks the training state of a checkpoint; a collective of all ranks.

    Rank 0 chooses. Each rank that sees the folder of rank 0 reads a share of the arrays, and all
    get the values by broadcasts, so only rank 0 needs to reach the folder. With the saved number of
    ranks, each gets its own seed generators' states and its own data cursor back. Otherwise new
    ranks keep their seeds, and the cursor must have been equal on all ranks.

    Args:
        checkpoints: a Checkpointer, or the path or URL of its folder.
        model: the same model as when it was saved, built; its optimizer is built if necessary.
        name: which checkpoint; None is the newest valid one.
        optimizer: as in `save_checkpoint`.
        cursor: as in `save_checkpoint`; its `load_state_dict` gets the saved state.
        local_variables: as in `save_checkpoint`; they keep their values.

    Returns:
        Where to resume; None if there is no checkpoint, and then nothing is changed.

    Raises:
        RuntimeError: rank 0 cannot read the checkpoints, all of them are invalid, or they are of
            another model; on every rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("restore_checkpoint")
    what = f"cannot go on from the checkpoints in {checkpoints}"
    reading = Reading(
        lambda: checkpointer(checkpoints),
        lambda: Contents(model, optimizer, local_variables),
        what,
    )
    root = reading.restore(name)
    if root is None:
        return None
    training = root[TRAINING]
    boundary.forget_gradients(model)
    _begin_with_scales(model, training["scales"])
    own, failure = RankState(model, cursor), None
    try:
        own.give_back(root["ranks"])
    except Exception as error:
        failure = error
    exchange(None, failure, "tfring.checkpoint.restore.own", what)
    given = {name: training[name] for name in ("epoch", "batch", "values", "stopped")}
    return TrainingPosition(
        step=root["step"],
        generation=root["generation"],
        memory=_of_rank_0(reading.memory, root["memory"]),
        metrics=own.metrics,
        **given,
    )


def _of_rank_0(memory: Memory, described: Sequence[Any]) -> Memory:
    """Returns on all ranks the states of callbacks on rank 0; a collective."""
    states, kinds = described
    arrays = {}
    for i, (name, (dtype, shape)) in enumerate(kinds.items()):
        mine = memory.arrays
        array = np.ascontiguousarray(mine[name]) if name in mine else np.empty(shape, dtype)
        with tf_errors():
            flat = array.reshape(-1).view(np.uint8)
            _native.note_call_site()
            flat = _native.core.broadcast(flat, name=f"tfring.checkpoint.memory.{i}", root=0)
        arrays[name] = np.asarray(flat).view(dtype).reshape(shape)
    return memory if topology.rank() == 0 else Memory(states, arrays)


def publish(checkpoints: Checkpointer) -> None:
    """Waits until all ranks have published what was saved; a collective of all ranks.

    After SIGTERM it waits as long as there is time. If that is too short, rank 0 logs an error.

    Raises:
        RuntimeError: it could not be written; on every rank.
    """
    _, failure = while_others_wait(checkpoints.wait)
    late = str(failure) if _is_late(checkpoints, failure) else None
    failure = None if late else failure
    what = f"cannot save to {checkpoints}"
    answers = exchange(late, failure, "tfring.checkpoint.publish", what)
    for rank, answer in enumerate(answers):
        if answer is not None and topology.rank() == 0:
            _log.error(
                "rank %d has not written its checkpoint, and is killed soon: %s. Training goes on "
                "from the one before, unless this one is still finished. Give the ranks more time "
                "after SIGTERM: tfring run --stop-timeout, or TFRING_STOP_TIMEOUT",
                rank,
                answer,
            )


def _is_late(checkpoints: Checkpointer, failure: Exception | None) -> bool:
    """Returns whether the time after SIGTERM was too short; `publish` logs it, and all leave."""
    return checkpoints.hurries and isinstance(failure, CheckpointTimeoutError)


def _write(checkpoints: Checkpointer, write: Callable[[], Any] | None, waits: bool) -> None:
    """Hands a share to the thread that writes; a collective if that waits for the storage.

    No rank ends alone for its failure: all raise it here, or in their next save.
    """
    if waits:
        failure: Exception | None = None
        if not checkpoints.hurries:  # known to all ranks alike
            # An earlier share of any rank first: rank 0 removes a checkpoint that lacks one.
            _, failure = while_others_wait(checkpoints.make_room)
        # It copies variables, which a rank that goes on after a loss would change.
        _, second = while_others_wait(write if failure is None else None, finishes=True)
        failure = failure or second
        failure = None if _is_late(checkpoints, failure) else failure
        exchange(None, failure, _SAVE, f"cannot save to {checkpoints}")
    elif write is not None:
        try:
            write()
        except Exception as error:
            checkpoints.fail(error)


def _warn_of(left_out: Sequence[Any]) -> None:
    if left_out:
        names = ", ".join(str(getattr(v, "path", v.name)) for v in left_out[:_LISTED])
        warnings.warn(
            f"tfring: variables that are each rank's own are not in the checkpoints, and begin "
            f"anew after a restart: {len(left_out)} such as {names}",
            stacklevel=3,
        )


def _of_all_ranks(
    checkpoints: Checkpointer, own: RankState, of_rank_0: Callable[[], dict[str, Any]], leaves: bool
) -> list[Any]:
    """Returns the entries of all ranks. Raises on all ranks if one of them cannot save."""
    failure: Exception | None = None
    mine: dict[str, Any] = {}
    try:
        trouble = checkpoints.trouble
        if not trouble:
            checkpoints.raise_failure()
        mine = {
            "own": own.as_json(),
            "busy": checkpoints.busy,
            "trouble": trouble,
            "writers": _known_sign(checkpoints),
            "left": seconds_left(),
            "leaves": leaves,
        }
        if topology.rank() == 0:
            mine["root"] = of_rank_0()
    except Exception as error:
        failure = error
    return exchange(mine, failure, _SAVE, f"cannot save to {checkpoints}")


def _of_root(checkpoints: Checkpointer, generation: int, step: int) -> dict[str, Any]:
    """Returns what rank 0 decides for all shares."""
    return {
        "step": step,
        "generation": generation,
        "data": checkpoints.new_data(step, generation),
        # Its manifest replaces the older one by one rename: rank 0 writes all of it.
        "again": checkpoints.saved == (generation, step),
    }


def checkpointer(given: Any) -> Checkpointer:
    """Returns the Checkpointer that was given, or one of the folder that was."""
    return given if isinstance(given, Checkpointer) else Checkpointer(given)


def reserve(checkpoints: Checkpointer, patience: float = 0.0, *, again: bool = True) -> int:
    """Returns the generation that rank 0 reserves, on all ranks; a collective.

    Args:
        checkpoints: only rank 0 uses it.
        patience: as in `Checkpointer.reserve`.
        again: whether to reserve a new one if rank 0 has reserved one before.

    Raises:
        RuntimeError: rank 0 cannot read the folder or cannot write to it; on every rank.
    """

    def number_of_rank_0() -> int:
        known = None if again else checkpoints.generation
        return checkpoints.reserve(patience) if known is None else known

    number, failure = while_others_wait(number_of_rank_0 if topology.rank() == 0 else None)
    what = f"cannot save to {checkpoints}"
    return int(exchange(number, failure, "tfring.checkpoint.reserve", what)[0])


def _scales_of(model: Any) -> list[Any]:
    """Returns the scales of all reductions, as values of JSON. All ranks call it.

    The names of reductions depend on how many optimizers a process has wrapped. So the place of an
    optimizer in the model identifies its reductions. A reduction without a name gets one here.
    """
    found, names = [], _names(model)
    for members, name, value in weights.scales():
        place, rest = "", name
        for other, hook_name in names.items():
            if name.startswith(f"{hook_name}."):
                place, rest = other, name.removeprefix(hook_name)
        found.append([place, members, rest, value])
    return found


def _begin_with_scales(model: Any, saved: Sequence[Any]) -> None:
    """Resumes with what `_scales_of` returned; the same on all ranks."""
    names = _names(model)
    known = [each for each in saved if not each[0] or each[0] in names]
    weights.begin_with_scales(
        [(members, names.get(place, "") + rest, value) for place, members, rest, value in known]
    )


def _names(model: Any) -> dict[str, str]:
    return {place: hook.name for place, hook in hooks_of(model).items()}


@dataclasses.dataclass(frozen=True)
class _Writers:
    """The ranks that write shares, as this rank knows them.

    Attributes:
        ranks: rank 0 is the first.
        sign: the file by which they were found. Ranks with another one, or none, were not asked.
        rank: of this process when they were found.
        size: of the job when they were found.
    """

    ranks: tuple[int, ...]
    sign: str
    rank: int
    size: int


def _known_sign(checkpoints: Checkpointer) -> str | None:
    """Returns the sign by which this rank knows the writers; None if it has to ask again."""
    known: _Writers | None = checkpoints.writers
    if known is None or (known.rank, known.size) != (topology.rank(), topology.size()):
        return None
    return known.sign


def _able_writers(checkpoints: Checkpointer, ranks: Sequence[Any]) -> tuple[int, ...]:
    """Returns the ranks that write this checkpoint, at least one; a collective at times.

    Raises:
        RuntimeError: no rank could write for as long as storages may fail; on every rank.
    """
    writers = _find_writers(checkpoints, [each["writers"] for each in ranks])
    if not all(each["leaves"] for each in ranks):
        writers = tuple(rank for rank in writers if rank == 0 or not ranks[rank]["leaves"])
    able = tuple(rank for rank in writers if not ranks[rank]["trouble"])
    if not able:  # no rank can write: all keep trying until the timeout
        failure = _failure_of(checkpoints)
        exchange(None, failure, _WRITERS, f"cannot save to {checkpoints}")
        able = writers
    return able[:1] if ranks[0]["root"]["again"] else able


def _let_others_write(checkpoints: Checkpointer, trouble: str) -> None:
    """Lets others write the share of this rank, and warns once."""
    if checkpoints.mark_replaced():
        _log.warning(
            "rank %d (host %s) cannot write to %s: %s. The other ranks write its share of the "
            "checkpoints until it can. Look at the storage of this host",
            topology.rank(),
            socket.gethostname(),
            checkpoints,
            trouble,
        )


def _find_writers(checkpoints: Checkpointer, signs: Sequence[str | None]) -> tuple[int, ...]:
    """Returns the ranks that see the folder of rank 0 and can write there; a collective.

    It remembers the result. If the `signs` of all ranks (see `_known_sign`) are the same, no rank
    asks.
    """
    known: _Writers | None = checkpoints.writers
    if known is not None and all(sign == known.sign for sign in signs):
        return known.ranks
    root = topology.rank() == 0
    sign, _ = while_others_wait(checkpoints.leave_sign if root else None)
    what = f"cannot save to {checkpoints}"
    sign = exchange(sign, None, _WRITERS, what)[0]
    if sign is None:  # the storage fails at present: rank 0 writes this one, and tries again
        return (0,)
    sees, _ = while_others_wait(lambda: root or checkpoints.sees(sign))
    answers = exchange(sees, None, _WRITERS, what)
    if root:
        checkpoints.remove_sign(sign)
    ranks = tuple(rank for rank, answer in enumerate(answers) if answer)
    checkpoints.writers = _Writers(ranks, sign, topology.rank(), topology.size())
    return ranks


def _failure_of(checkpoints: Checkpointer) -> Exception | None:
    try:
        checkpoints.raise_failure()
    except Exception as error:
        return error
    return None
