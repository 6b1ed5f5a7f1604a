"""The manifest of a checkpoint: a small JSON file that says what the file of arrays must hold.

It is written last, so a checkpoint exists if and only if its manifest does. Its name has the
generation and the step; the name of the file of arrays has a random part as well, so that no file
of arrays is ever written over. docs/checkpoints.md describes both formats.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from tfring.checkpoint.errors import CheckpointError, InvalidCheckpointError

FORMAT = 1
_SUFFIX = ".json"
_DATA_SUFFIX = ".npz"
_BASE = r"g(\d+)-s(\d+)"
_MANIFEST = re.compile(rf"{_BASE}\.json")
# All that a writer leaves behind when it is killed: arrays without a manifest, unfinished files.
_OURS = re.compile(rf"{_BASE}(-[0-9a-f]+)?\.(json|npz)(\.[0-9a-f]+\.tmp)?")
_DIGEST_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Part:
    """One array, or one blob of bytes, as the file of arrays must hold it.

    Attributes:
        dtype: as numpy writes it ("<f4"), or the name of a dtype that numpy does not have
            ("bfloat16"); None for a blob of bytes.
        shape: of an array; () for a blob.
        nbytes: size of the values in bytes.
        crc32: of the part as it lies in the file, with the header of an array.
    """

    dtype: str | None
    shape: tuple[int, ...]
    nbytes: int
    crc32: int


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint without reading its arrays.

    Attributes:
        generation: which generation of the job wrote it; a higher one wins.
        step: which training step it was taken after; within a generation the higher one wins.
        metadata: what the writer said besides: values of JSON.
        metrics: numbers by which the best checkpoints are kept.
        created: seconds since 1970 by the clock of the writer.
        data: name of the file of arrays.
        nbytes: size of that file in bytes.
        parts: what the file must hold, by name.
    """

    generation: int
    step: int
    metadata: Mapping[str, Any]
    metrics: Mapping[str, float]
    created: float
    data: str
    nbytes: int
    parts: Mapping[str, Part]

    @property
    def name(self) -> str:
        """Its name, for example "g00003-s000001200"; the file of the manifest adds ".json"."""
        return checkpoint_name(self.generation, self.step)

    @property
    def order(self) -> tuple[int, int]:
        """The checkpoint for which this is highest wins."""
        return self.generation, self.step


def checkpoint_name(generation: int, step: int) -> str:
    """Returns the name of a checkpoint; names sort as (generation, step) do."""
    return f"g{generation:05d}-s{step:09d}"


def manifest_file(name: str) -> str:
    """Returns the file name of a checkpoint's manifest."""
    return name + _SUFFIX


def new_data_file(name: str) -> str:
    """Returns a file name for a checkpoint's arrays that no file has yet."""
    return f"{name}-{secrets.token_hex(4)}{_DATA_SUFFIX}"


def order_of(file: str) -> tuple[int, int] | None:
    """Returns (generation, step) of the file of a manifest; None for any other file."""
    found = _MANIFEST.fullmatch(file)
    return (int(found[1]), int(found[2])) if found else None


def generation_of(file: str) -> int | None:
    """Returns the generation of any file that a writer of checkpoints makes; None for others."""
    found = _OURS.fullmatch(file)
    return int(found[1]) if found else None


def as_json(value: Any, what: str) -> Any:
    """Returns a value as it will be read back: lists for tuples, texts for keys.

    Args:
        value: anything that JSON can hold.
        what: what it is, for the error.

    Raises:
        CheckpointError: JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint: {what} must be what JSON can hold (numbers, texts, lists, dicts): {error}"
        ) from error


def encode(info: CheckpointInfo) -> bytes:
    """Returns the bytes of a manifest, with a checksum of itself."""
    fields = as_json({"format": FORMAT, **dataclasses.asdict(info)}, "metadata")
    return json.dumps({"blake2b": _digest(fields), "manifest": fields}, indent=1).encode()


def decode(data: bytes, file: str) -> CheckpointInfo:
    """Returns the manifest of these bytes.

    Args:
        data: what was read.
        file: where it was read, which must fit what it says.

    Raises:
        InvalidCheckpointError: it is torn or changed, or of another version of tfring.
    """
    try:
        read = json.loads(data)
        fields = read["manifest"]
        intact = read["blake2b"] == _digest(fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidCheckpointError(f"{file} is no whole manifest: {error!r}") from error
    if not intact:
        raise InvalidCheckpointError(f"{file} was changed after it was written: wrong checksum")
    if fields["format"] != FORMAT:
        raise InvalidCheckpointError(
            f"{file} has format {fields['format']}, and this version of tfring reads {FORMAT}"
        )
    del fields["format"]
    parts = {name: Part(**{**p, "shape": tuple(p["shape"])}) for name, p in fields["parts"].items()}
    info = CheckpointInfo(**{**fields, "parts": parts})
    if file != manifest_file(info.name):
        raise InvalidCheckpointError(f"{file} is the manifest of {info.name}: it was renamed")
    return info


def _digest(fields: Any) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
