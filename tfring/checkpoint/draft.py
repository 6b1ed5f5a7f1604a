"""A checkpoint before it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfring.checkpoint import manifest
from tfring.checkpoint.shares import Share


@dataclasses.dataclass(frozen=True)
class Draft:
    """A checkpoint, or a share of one, before it is written."""

    generation: int
    step: int
    state: Mapping[str, Any]  # what `arrays.copied` returned
    metadata: Mapping[str, Any]  # values of JSON
    metrics: Mapping[str, float]  # by which the best checkpoints are kept
    share: Share
    may_publish: Callable[[], bool] | None = None  # whether it may still appear; None: it may

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
