"""How the ranks read a checkpoint together: each a part of the arrays, which it gives to all."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from tfring.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointInfo,
    InvalidCheckpointError,
)
from tfring.checkpoint.shares import balanced
from tfring.keras.agreement import exchange, while_others_wait
from tfring.keras.callbacks.checkpoints.contents import TRAINING, Contents
from tfring.keras.callbacks.checkpoints.memory import Memory
from tfring.runtime import topology
from tfring.runtime.exceptions import described

_RESTORE = "tfring.checkpoint.restore"
_OWN = "tfring/"  # parts of a checkpoint that are no variables, all in share 0
RANK = _OWN + "rank/{}"
_NO_FIT = "Give fit the model that was saved, or a new folder to begin anew"


class Reading:
    """Gives all ranks the values of one checkpoint. Its methods are collectives."""

    def __init__(
        self,
        opened: Callable[[], Checkpointer],
        contents: Callable[[], Contents],
        what: str,
    ) -> None:
        """Sets where to read from, and what could not be done, for errors.

        `opened` may fail on other ranks than 0, which then read nothing.
        """
        self._opened, self._contents, self._what = opened, contents, what
        self.memory = Memory()  # of callbacks, on rank 0
        self._damaged: dict[str, str] = {}  # what ranks have found, by file of arrays

    def restore(self, name: str | None) -> Mapping[str, Any] | None:
        """Restores the checkpoint that rank 0 chooses. All skip one that is damaged for some rank.

        Args:
            name: which checkpoint; None is the newest valid one.

        Returns:
            Its generation, step, and metadata under TRAINING, on all ranks; None if there is none.

        Raises:
            RuntimeError: none is valid, or it is of another model; on every rank.
        """
        while True:
            chooses = topology.rank() == 0
            found, failure = while_others_wait((lambda: self._find(name)) if chooses else None)
            chosen = None
            if found is not None:
                try:
                    chosen = self._chosen(*found)
                except Exception as error:
                    failure = error
            root: dict[str, Any] | None = exchange(chosen, failure, _RESTORE, self._what, _NO_FIT)[
                0
            ]
            if root is None:
                return None
            damage = self._read(root)
            if damage is None:
                return root
            self._damaged[root["data"]] = damage

    def _find(self, name: str | None) -> tuple[CheckpointInfo, Mapping[str, Any], Any] | None:
        """Returns the checkpoint, its variables, and its other parts; None if there is none."""
        checkpoints = self._opened()

        def valid(info: CheckpointInfo) -> tuple[CheckpointInfo, Mapping[str, Any], Any]:
            if info.data in self._damaged:
                raise InvalidCheckpointError(self._damaged[info.data])
            parts = checkpoints.parts(info)
            own = {name for name in parts if name.startswith(_OWN)}
            variables = {name: part for name, part in parts.items() if name not in own}
            return info, variables, checkpoints.read(info, own)

        return checkpoints.newest(valid) if name is None else valid(checkpoints.info(name))

    def _chosen(
        self, info: CheckpointInfo, parts: Mapping[str, Any], own: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns what the other ranks have to know about the checkpoint."""
        training = info.metadata.get(TRAINING)
        if not isinstance(training, dict) or not isinstance(training.get("ranks"), int):
            raise CheckpointError(
                f"{info.name} was not written by save_checkpoint or its callback, or by an older "
                "tfring"
            )
        contents = self._contents()
        contents.build_alike(training["built"])
        contents.refuse_others(parts)
        self.memory = Memory.of_parts(own)
        ranks = [json.loads(own[RANK.format(i)]) for i in range(training["ranks"])]
        known: dict[str, Any] = {"name": info.name, "data": info.data, "ranks": ranks}
        known["memory"] = self.memory.described()
        return {TRAINING: training, "generation": info.generation, "step": info.step, **known}

    def _read(self, root: Mapping[str, Any]) -> str | None:
        """Reads the checkpoint into the variables; returns the error if it is damaged."""
        source, failure = while_others_wait(lambda: self._seen(root["name"], root["data"]))
        try:
            contents = self._contents()
            contents.build_alike(root[TRAINING]["built"])
        except Exception as error:
            failure = error
        answers = exchange(source is not None, failure, _RESTORE, self._what)
        readers = [rank for rank, reads in enumerate(answers) if reads]
        shares = dict(zip(readers, balanced(contents.sizes(), len(readers)), strict=True))
        read = None
        if source is not None:
            checkpoints, info = source
            read = functools.partial(checkpoints.read, info, set(shares[topology.rank()]))
        values, failure = while_others_wait(read)
        for wrong in exchange(failure and described(failure), None, _RESTORE, self._what):
            if wrong is not None:
                return str(wrong)
        contents.give(shares, values or {})
        return None

    def _seen(self, name: str, data: str) -> tuple[Checkpointer, CheckpointInfo] | None:
        """Returns the checkpoint of rank 0, where this rank sees it."""
        try:
            checkpoints = self._opened()
            info = checkpoints.info(name)
        except Exception:
            if topology.rank() == 0:
                raise
            return None
        return (checkpoints, info) if info.data == data else None
