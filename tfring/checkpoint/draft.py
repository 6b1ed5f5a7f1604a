"""Draft: what is to become a checkpoint, or a share of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfring.checkpoint import manifest
from tfring.checkpoint.shares import Share


@dataclasses.dataclass(frozen=True)
class Draft:
    """What is to become a checkpoint.

    Attributes:
        generation: which generation of the job writes it.
        step: which training step it was taken after.
        state: what `arrays.copied` returned.
        metadata: values of JSON.
        metrics: numbers by which the best checkpoints are kept.
        share: which part of the checkpoint the state is.
        may_publish: says whether it may still appear; None: it may.
    """

    generation: int
    step: int
    state: Mapping[str, Any]
    metadata: Mapping[str, Any]
    metrics: Mapping[str, float]
    share: Share
    may_publish: Callable[[], bool] | None = None

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return manifest.checkpoint_name(self.generation, self.step)

    @property
    def manifest(self) -> str:
        """The file name of the manifest."""
        data, index = self.share.data, self.share.index
        if index == 0:
            return manifest.manifest_file(self.name)
        return manifest.share_manifest(data, index)

    @property
    def data(self) -> str:
        """The name of the file of arrays."""
        return manifest.share_data(self.share.data, self.share.index)
