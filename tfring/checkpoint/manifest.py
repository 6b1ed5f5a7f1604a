"""The manifest of a checkpoint: a small JSON file that says what the file of arrays must hold.

It is written last, so a checkpoint exists if and only if its manifest does. Its name has the
generation and the step; the name of the file of arrays has its owner and a random part as well, so
that no file of arrays is ever written over. Where several processes write shares of one checkpoint,
each share has a file of arrays and a manifest, and the checkpoint exists if and only if all of
these manifests do. `tfring help checkpoints` describes both formats.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import IO, Any

from tfring.checkpoint.errors import CheckpointError, InvalidCheckpointError

FORMAT = 2  # no version of tfring has written another one
_SUFFIX = ".json"
_DATA_SUFFIX = ".npz"
# Not more digits: every name that is taken for one of ours is one that can be written.
_BASE = r"g(\d{5,18})-s(\d{9,18})"
LARGEST = 10**18  # generations and steps are less
_MANIFEST = re.compile(rf"{_BASE}\.json", re.ASCII)
_SHARE = r"(\.[1-9]\d{0,4})?"  # 0 has no number
_SHARE_FILE = re.compile(r"(.*\.\d+)\.npz", re.ASCII)
_MOST_SHARES = 10**5
# All that a writer leaves behind when it is killed: arrays without a manifest, unfinished files.
_OURS = re.compile(rf"{_BASE}(-[0-9a-f]+{_SHARE})?\.(json|npz)(\.[0-9a-f]+\.tmp)?", re.ASCII)
_RESERVATION = re.compile(r"g(\d{5,18})\.owner", re.ASCII)
_OWNER_BYTES = 4
_OWNER = rf"([0-9a-f]{{{2 * _OWNER_BYTES}}})"
_OWNED = re.compile(rf"{_BASE}-{_OWNER}[0-9a-f]+{_SHARE}\.(json|npz).*", re.ASCII)
_DIGEST_BYTES = 16
MOST_BYTES = 64 << 20  # of a manifest, which is read whole
# What numpy or ml_dtypes may be asked for: "<f4", "<M8[ns]", "bfloat16"; nothing that numpy parses.
_DTYPE = re.compile(r"[<>|]?[A-Za-z]\w{0,30}(\[\w{1,10}\])?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Part:
    """One array, or one blob of bytes, as the file of arrays must hold it."""

    # As numpy writes it ("<f4"), or a name that numpy does not have ("bfloat16"); None for a blob.
    dtype: str | None
    shape: tuple[int, ...]  # () for a blob
    nbytes: int  # of the values
    crc32: int  # of the part as it lies in the file, with the header of an array


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
        shares: how many files of arrays the checkpoint has. The others have manifests of their own.
    """

    generation: int
    step: int
    metadata: Mapping[str, Any]
    metrics: Mapping[str, float]
    created: float
    data: str
    nbytes: int
    parts: Mapping[str, Part]
    shares: int = 1

    @property
    def name(self) -> str:
        """Its name, for example "g00003-s000001200"; the file of the manifest adds ".json"."""
        return checkpoint_name(self.generation, self.step)

    @property
    def order(self) -> tuple[int, int]:
        """The checkpoint for which this is highest wins."""
        return self.generation, self.step

    @property
    def manifests(self) -> list[str]:
        """The file names of its manifests, that which names the checkpoint first."""
        others = [share_manifest(self.data, index) for index in range(1, self.shares)]
        return [manifest_file(self.name), *others]

    @property
    def files(self) -> list[str]:
        """All its file names; without the first there is no checkpoint."""
        return [*self.manifests, *(share_data(self.data, index) for index in range(self.shares))]


def checkpoint_name(generation: int, step: int) -> str:
    """Returns the name of a checkpoint; names sort as (generation, step) do."""
    return f"g{generation:05d}-s{step:09d}"


def manifest_file(name: str) -> str:
    """Returns the file name of a checkpoint's manifest."""
    return name + _SUFFIX


def share_data(data: str, index: int) -> str:
    """Returns the name of the file of arrays of a share, from that of share 0."""
    return data if index == 0 else f"{data.removesuffix(_DATA_SUFFIX)}.{index}{_DATA_SUFFIX}"


def share_manifest(data: str, index: int) -> str:
    """Returns the file name of the manifest of another share than 0, from `data` of share 0."""
    return f"{data.removesuffix(_DATA_SUFFIX)}.{index}{_SUFFIX}"


def new_owner() -> str:
    """Returns a random name for one that writes checkpoints."""
    return secrets.token_hex(_OWNER_BYTES)


def new_data_file(name: str, owner: str) -> str:
    """Returns a file name for a checkpoint's arrays that no file has yet."""
    return f"{name}-{owner}{secrets.token_hex(4)}{_DATA_SUFFIX}"


def reservation_file(generation: int) -> str:
    """Returns the name of the file by which a generation is reserved."""
    return f"g{generation:05d}.owner"


def reserved_by(file: str) -> int:
    """Returns the generation that a file reserves; -1 for any other file."""
    found = _RESERVATION.fullmatch(file)
    return int(found[1]) if found else -1


def order_of(file: str) -> tuple[int, int] | None:
    """Returns (generation, step) of the file of a manifest; None for any other file."""
    found = _MANIFEST.fullmatch(file)
    return (int(found[1]), int(found[2])) if found else None


def place_of(file: str) -> tuple[int, int] | None:
    """Returns (generation, step) of any file that a writer of checkpoints makes; None for others.

    A file that reserves a generation comes before its first step.
    """
    found = _OURS.fullmatch(file)
    if found is None:
        reserved = reserved_by(file)
        return None if reserved < 0 else (reserved, -1)
    return int(found[1]), int(found[2])


def owner_of(file: str) -> str | None:
    """Returns the owner of a file of arrays or of the manifest of a share; None for others."""
    found = _OWNED.fullmatch(file)
    return found[3] if found else None


def as_json(value: Any, what: str) -> Any:
    """Returns a value as it is read back: lists for tuples, texts for keys.

    CheckpointError: JSON cannot hold it; the message names `what`.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint: {what} must be what JSON can hold (numbers, texts, lists, dicts): {error}"
        ) from error


def encode(info: CheckpointInfo) -> bytes:
    """Returns a manifest with its checksum; CheckpointError if it is too large to be read again."""
    fields = as_json({"format": FORMAT, **dataclasses.asdict(info)}, "metadata")
    text = json.dumps({"blake2b": _digest(fields), "manifest": fields}, indent=1).encode()
    if len(text) > MOST_BYTES:
        raise CheckpointError(
            f"the manifest of checkpoint {info.name} would have {len(text)} bytes, more than "
            f"{MOST_BYTES}. Put what makes its metadata large into the state, as an array"
        )
    return text


def decode(stream: IO[bytes], file: str) -> CheckpointInfo:
    """Returns the manifest in a file of a name. Every field is checked, as the file is untrusted.

    InvalidCheckpointError: it is torn, changed, renamed, or of another version of tfring.
    """
    data = stream.read(MOST_BYTES + 1)
    if data is None or len(data) > MOST_BYTES:  # None: there is nothing yet, as in a pipe
        raise InvalidCheckpointError(f"{file} has no end, or more than {MOST_BYTES} bytes")
    try:
        read = json.loads(data)
        fields = read["manifest"]
        if read["blake2b"] != _digest(fields):
            raise InvalidCheckpointError(f"{file} was changed after it was written: wrong checksum")
        if fields["format"] != FORMAT:
            raise InvalidCheckpointError(
                f"{file} has format {fields['format']!r:.20}, and this version of tfring reads "
                f"{FORMAT}"
            )
        info = _checked(fields)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidCheckpointError(f"{file} is no whole manifest: {error!r}") from error
    share = _SHARE_FILE.fullmatch(info.data)
    if file != (manifest_file(info.name) if share is None else share[1] + _SUFFIX):
        raise InvalidCheckpointError(f"{file} is the manifest of {info.name}: it was renamed")
    return info


def _checked(fields: dict[str, Any]) -> CheckpointInfo:
    """Makes a CheckpointInfo of what JSON has; ValueError or TypeError if a field is not right."""
    _refuse_other_keys(fields, CheckpointInfo, "format")
    info = CheckpointInfo(
        generation=_count(fields["generation"], LARGEST),
        step=_count(fields["step"], LARGEST),
        metadata=_of(dict, fields["metadata"]),
        metrics={name: float(value) for name, value in _of(dict, fields["metrics"]).items()},
        created=float(fields["created"]),
        data=_of(str, fields["data"]),
        nbytes=_count(fields["nbytes"]),
        parts={name: _checked_part(part) for name, part in _of(dict, fields["parts"]).items()},
        shares=_count(fields["shares"], _MOST_SHARES),
    )
    if info.shares == 0:
        raise ValueError("it has no shares")
    # A name of a file in this folder, and of no other checkpoint: it is removed with this one.
    if not re.fullmatch(rf"{info.name}-[0-9a-f]+{_SHARE}\.npz", info.data, re.ASCII):
        raise ValueError(f"{info.data[:100]!r} is no file of arrays of {info.name}")
    return info


def _checked_part(fields: Any) -> Part:
    _refuse_other_keys(_of(dict, fields), Part)
    dtype = fields["dtype"]
    if dtype is not None and not _DTYPE.fullmatch(_of(str, dtype)):
        raise ValueError(f"{dtype[:100]!r} is no dtype")
    shape = tuple(_count(length) for length in _of(list, fields["shape"]))
    return Part(dtype, shape, _count(fields["nbytes"]), _count(fields["crc32"], 1 << 32))


def _refuse_other_keys(fields: Mapping[str, Any], kind: type, *more: str) -> None:
    wanted = {field.name for field in dataclasses.fields(kind)} | set(more)
    if fields.keys() != wanted:
        raise ValueError(f"its keys are not {sorted(wanted)}")


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} in the place of a {kind.__name__}")
    return value


def _count(value: Any, limit: int = 1 << 63) -> int:
    if not 0 <= _of(int, value) < limit:
        raise ValueError(f"{value} is not from 0 to {limit - 1}")
    return int(value)


def _digest(fields: Any) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
