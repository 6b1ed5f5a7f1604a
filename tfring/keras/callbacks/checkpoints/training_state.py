"""save_checkpoint and restore_checkpoint: the training state of all ranks, in one checkpoint."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfring import topology
from tfring.checkpoint import Checkpoint, Checkpointer, CheckpointError, CheckpointInfo
from tfring.checkpoint.manifest import as_json
from tfring.collectives import objects
from tfring.collectives.variables import broadcast_variables
from tfring.exceptions import described
from tfring.keras.callbacks.checkpoints.contents import Contents
from tfring.ops import arguments

_SAVE = "tfring.checkpoint.save"
_RESTORE = "tfring.checkpoint.restore"
_LISTED = 3  # variables in a warning
_TRAINING = "tfring"  # the key of metadata under which this file keeps its own


@dataclasses.dataclass(frozen=True)
class TrainingPosition:
    """Where a checkpoint was taken.

    Attributes:
        epoch: the epoch that is to go on or to begin, counted from 0.
        batch: how many batches of that epoch had been trained.
        step: how many steps had been trained in all.
        generation: which generation of the job saved it.
        values: what the program had saved besides.
    """

    epoch: int
    batch: int
    step: int
    generation: int
    values: Mapping[str, Any]


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
    must: bool = False,
    may_publish: Callable[[], bool] | None = None,
) -> bool:
    """Saves weights, optimizers and the position of training; a collective of all ranks.

    Rank 0 copies and writes the weights and the optimizers' variables. Of each rank it keeps the
    states of seed generators and the data cursor, which the ranks exchange by one small collective.
    While an earlier checkpoint is being written nothing is saved; see `Checkpointer.save`.

    Args:
        checkpoints: where to; only rank 0 uses it.
        model: a model that is built, the same on all ranks.
        step: how many steps have been trained.
        epoch: the epoch that is to go on or to begin after a restart, counted from 0.
        batch: how many batches of it have been trained.
        generation: which generation of the job saves; None as in `Checkpointer.save`.
        optimizer: one that cannot be reached from the model, as in a loop of the user's.
        cursor: which data comes next: an object with `state_dict()`, which returns values of JSON,
            and `load_state_dict(state)`. It has to count what was trained, not what was read ahead.
        values: more to keep: values that JSON can hold. Those of rank 0 count.
        metrics: by which the best checkpoints are kept.
        local_variables: variables of the model that are a rank's own; they are left out.
        must: as in `Checkpointer.save`.
        may_publish: as in `Checkpointer.save`.

    Returns:
        Whether it is saved and not skipped; the same on every rank.

    Raises:
        RuntimeError: A rank cannot save, or an earlier checkpoint could not be written; on every
            rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("save_checkpoint")
    contents = Contents(model, optimizer, local_variables)
    reserves = generation is None
    ranks = _of_all_ranks(checkpoints, contents, cursor, values, reserves)
    saves = must or not ranks[0].pop("busy")
    if topology.rank() != 0:
        return saves
    if not saves:
        checkpoints.skip(step)
        return False
    _warn_of(contents.left_out())
    training = {
        "epoch": epoch,
        "batch": batch,
        "built": contents.built(),
        "ranks": ranks,
        "values": dict(values or {}),
    }
    metadata, arrays = {_TRAINING: training}, contents.arrays()
    more: dict[str, Any] = {"metadata": metadata, "metrics": metrics, "may_publish": may_publish}
    checkpoints.save(arrays, step, generation, must=must, **more)
    return True


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

    Rank 0 reads, and the others get the values from it, so only rank 0 needs to reach the folder.
    With as many ranks as saved, each gets its own seed generators' states and its own data cursor
    back. With another number of ranks new ones keep the seeds that they have, and the cursor must
    have been equal on all ranks.

    Args:
        checkpoints: a Checkpointer, or the path or URL of its folder; only rank 0 uses it.
        model: the same model as when it was saved, built; its optimizer is built if necessary.
        name: which checkpoint; None is the newest valid one.
        optimizer: as in `save_checkpoint`.
        cursor: as in `save_checkpoint`; what is kept of it is given to its `load_state_dict`.
        local_variables: as in `save_checkpoint`; they keep their values.

    Returns:
        Where to go on; None if there is no checkpoint, in which case nothing is changed.

    Raises:
        RuntimeError: Rank 0 cannot read the checkpoints, all of them are invalid, or they are of
            another model; on every rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("restore_checkpoint")
    found, failure = None, None
    if topology.rank() == 0:
        try:
            loaded = checkpointer(checkpoints).load(name)
            if loaded is not None:
                found = _assigned(Contents(model, optimizer, local_variables), loaded)
        except Exception as error:
            failure = error
    what = f"cannot go on from the checkpoints in {checkpoints}"
    root = _exchange(found, failure, _RESTORE, what, _NO_FIT)[0]["value"]
    if root is None:
        return None
    training = root["training"]
    contents = Contents(model, optimizer, local_variables)
    contents.build_alike(training["built"])
    broadcast_variables(list(contents.variables().values()), root_rank=0)
    ranks = training["ranks"]
    if topology.rank() < len(ranks):
        contents.set_seeds(ranks[topology.rank()]["seeds"])
    if cursor is not None:
        _load_cursor(cursor, [each["cursor"] for each in ranks])
    epoch, batch, values = training["epoch"], training["batch"], training["values"]
    return TrainingPosition(epoch, batch, root["step"], root["generation"], values)


def publish(checkpoints: Checkpointer) -> None:
    """Waits until rank 0 has published what was saved; a collective of all ranks.

    Raises:
        RuntimeError: it could not be written; on every rank.
    """
    failure = None
    if topology.rank() == 0:
        try:
            checkpoints.wait()
        except Exception as error:
            failure = error
    _exchange(None, failure, "tfring.checkpoint.publish", f"cannot save to {checkpoints}")


def _warn_of(left_out: Sequence[Any]) -> None:
    if left_out:
        names = ", ".join(str(getattr(v, "path", v.name)) for v in left_out[:_LISTED])
        warnings.warn(
            f"tfring: variables that are each rank's own are not in the checkpoints, and begin "
            f"anew after a restart: {len(left_out)} such as {names}",
            stacklevel=3,
        )


def _of_all_ranks(
    checkpoints: Checkpointer,
    contents: Contents,
    cursor: Any,
    values: Mapping[str, Any] | None,
    reserves: bool,
) -> list[Any]:
    """Returns what is kept of each rank. Raises on all ranks if one of them cannot save."""
    failure: Exception | None = None
    mine: dict[str, Any] = {}
    try:
        state = None if cursor is None else as_json(cursor.state_dict(), "the state of the cursor")
        mine = {"seeds": contents.seeds(), "cursor": state}
        if topology.rank() == 0:
            mine["busy"] = checkpoints.busy
            checkpoints.raise_failure()
            if reserves and checkpoints.generation is None:
                checkpoints.reserve()
            as_json(dict(values or {}), "values")
    except Exception as error:
        failure = error
    everywhere = _exchange(mine, failure, _SAVE, f"cannot save to {checkpoints}")
    return [each["value"] for each in everywhere]


_NO_FIT = "Give fit the model that was saved, or another folder to begin anew"


def checkpointer(given: Any) -> Checkpointer:
    """Returns the Checkpointer that was given, or one of the folder that was."""
    return given if isinstance(given, Checkpointer) else Checkpointer(given)


def _assigned(contents: Contents, loaded: Checkpoint) -> dict[str, Any]:
    """Gives rank 0's variables their values; returns what the other ranks need to know."""
    info: CheckpointInfo = loaded.info
    training = info.metadata.get(_TRAINING)
    if training is None:
        raise CheckpointError(f"{info.name} was not written by save_checkpoint or its callback")
    contents.build_alike(training["built"])
    contents.assign(loaded.state)
    return {"training": training, "step": info.step, "generation": info.generation}


def _load_cursor(cursor: Any, states: Sequence[Any]) -> None:
    rank, size = topology.rank(), topology.size()
    if all(state is None for state in states):
        warnings.warn("the checkpoint has no data cursor: the data begins anew", stacklevel=3)
    elif len(states) == size:
        cursor.load_state_dict(states[rank])
    elif all(state == states[0] for state in states):
        cursor.load_state_dict(states[0])
    else:
        raise RuntimeError(
            f"rank {rank}: the checkpoint has another data cursor for each of {len(states)} ranks, "
            f"and there are {size} now: start as many, or use a cursor that counts the samples of "
            "all ranks"
        )


def _exchange(
    value: Any, failure: Exception | None, name: str, what: str, advice: str = ""
) -> list[dict[str, Any]]:
    """Exchanges values of JSON; raises on all ranks if one of them has failed."""
    mine = {"value": value, "failed": failure and described(failure)}
    everywhere: list[dict[str, Any]] = objects.allgather_json(mine, name=name)
    for rank, each in enumerate(everywhere):
        if each["failed"]:
            raise RuntimeError(
                f"rank {topology.rank()}: rank {rank} {what}: {each['failed']}"
                + (f". {advice}" if advice else "")
            ) from failure
    return everywhere


def reserve(checkpoints: Checkpointer, patience: float = 0.0) -> int:
    """Returns the generation that rank 0 reserves, on all ranks; a collective.

    Args:
        checkpoints: where; only rank 0 uses it.
        patience: as in `Checkpointer.reserve`.

    Raises:
        RuntimeError: rank 0 cannot read the folder or cannot write to it; on every rank.
    """
    number: int | None = None
    failure = None
    if topology.rank() == 0:
        try:
            number = checkpoints.reserve(patience)
        except Exception as error:
            failure = error
    what = f"cannot save to {checkpoints}"
    return int(_exchange(number, failure, "tfring.checkpoint.reserve", what)[0]["value"])
