"""Reduces gradients in a function with jit_compile=True."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.collectives import buckets
from tfring.ops import arguments, builders, library
from tfring.runtime import process_sets
from tfring.training import overlap
from tfring.training.bucket_reduction import BucketReduction


class XlaReduction(BucketReduction):
    """As BucketReduction, but starts each collective before it waits for the first.

    XLA runs the collectives of a function in the order in which they were traced. On a GPU, started
    collectives overlap with each other and with the backward pass. Gradients are dense here.
    """

    def _reduce_all(
        self, cut: Sequence[buckets.Bucket], gradients: list[Any], layout: int, results: list[Any]
    ) -> None:
        traced = overlap.begin()
        with arguments.on_device(self._options.device_dense):
            parts = [part for bucket in cut for part in self._parts(bucket, gradients)]
            waits = [self._start(part.name, part.tensors, layout) for part in parts]
            for part, wait in zip(parts, waits, strict=True):
                part.put(wait(), results)
        overlap.pin(traced)

    def _start(self, name: str, tensors: Sequence[Any], layout: int) -> Any:
        return builders.start_allreduce(
            [arguments.checked_tensor(t, name, library.REDUCIBLE, "allreduce") for t in tensors],
            name=name,
            op=self._options.op,
            prescale=1.0 / self._options.gradient_predivide_factor,
            postscale=self._options.gradient_predivide_factor,
            process_set_id=process_sets.checked_id(self._options.members),
            layout_hash=layout,
            group=True,
        )
