"""The file of arrays: a zip file of .npy files, which numpy.load reads, too.

Nothing is compressed: training state hardly gets smaller, and reading and writing stay as fast as
the storage. The zip file has a CRC-32 of each part, and the manifest has it once more.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np

from tfring.checkpoint.errors import CheckpointError, InvalidCheckpointError
from tfring.checkpoint.manifest import Part

State = Mapping[str, Any]  # arrays and blobs of bytes, by name

_PIECE = 1 << 24  # bytes that are written or read at once
# What reading a damaged zip file or header of an array raises. MemoryError: of a file, however
# large, that is what its manifest says, and too large for this process.
_DAMAGES = (
    zipfile.BadZipFile,
    struct.error,
    ValueError,
    KeyError,
    EOFError,
    OverflowError,
    MemoryError,
)
_LOCAL_HEADER = 30  # bytes: of a part of a zip file, without its name
_MAX_NAME = 1000  # characters; zip files allow more, but people read names


def copied(state: State, buffers: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the state, arrays, numbers or bytes by name, as arrays that nobody else changes.

    `buffers` is what this function returned before, and nobody needs any more. It is emptied: what
    fits is written over, because new memory costs several times what the copy does.

    CheckpointError: a value or a name cannot be kept.
    """
    old = {} if buffers is None else buffers
    for name in old.keys() - state.keys():
        del old[name]
    return {_checked(name): _own(name, value, old.pop(name, None)) for name, value in state.items()}


def uncopied(state: State) -> dict[str, Any]:
    """Returns the state as arrays, which are those that are given; raises what `copied` does."""
    return {_checked(name): _seen(name, value) for name, value in state.items()}


def write(stream: IO[bytes], state: Mapping[str, Any]) -> dict[str, Part]:
    """Writes a file of arrays, which need not be able to seek; returns its parts."""
    parts = {}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, value in state.items():
            blob = isinstance(value, bytes)
            entry = zipfile.ZipInfo(_file_of(name, blob))
            with archive.open(entry, "w", force_zip64=True) as file:
                if not blob:
                    file.write(_header(value))
                for piece in _pieces(value):
                    file.write(piece)
            dtype = None if blob else dtype_name(value)
            shape = () if blob else tuple(value.shape)
            size = len(value) if blob else value.nbytes
            parts[name] = Part(dtype, shape, size, entry.CRC)
    return parts


def read(stream: IO[bytes], parts: Mapping[str, Part]) -> Iterator[tuple[str, Any]]:
    """Yields each part of a file of arrays with its name, checked against the manifest's.

    InvalidCheckpointError: the file does not hold what the manifest says.
    """
    try:
        most = stream.seek(0, io.SEEK_END)
        if sum(part.nbytes for part in parts.values()) > most:
            raise InvalidCheckpointError(f"its {most} bytes are less than the manifest says")
        with zipfile.ZipFile(stream) as archive:
            for name, part in parts.items():
                yield name, _read_part(stream, archive, name, part)
    except CheckpointError:
        raise
    except (*_DAMAGES, OSError, RuntimeError) as error:
        # RuntimeError: a changed flag asks for a password. EINVAL: a place before the beginning.
        # zipfile takes a file whose end cannot be read for one that is no zip file.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError) and cause.errno != errno.EINVAL:
            raise cause from None
        raise InvalidCheckpointError(f"its file of arrays is damaged: {error!r}") from error


def _checked(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or "\0" in name:
        raise CheckpointError(
            f"checkpoint: {name!r} is no name for an array: it must be a text of 1 to {_MAX_NAME} "
            "characters"
        )
    return name


def _own(name: str, value: Any, buffer: Any) -> Any:
    array = _seen(name, value)
    if isinstance(array, bytes):
        return array
    copy = buffer
    if getattr(copy, "shape", None) != array.shape or copy.dtype != array.dtype:
        copy = np.empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _seen(name: str, value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    array = np.asarray(value, order="C")
    if array.dtype.hasobject or (array.dtype.kind == "V" and not _is_foreign(array.dtype)):
        raise CheckpointError(
            f"checkpoint: {name!r} has dtype {array.dtype}: only arrays of numbers, texts and "
            "times can be kept. Put what is no array into metadata, or give its bytes"
        )
    return array


def _file_of(name: str, blob: bool) -> str:
    return f"{name}.bin" if blob else f"{name}.npy"


def _is_foreign(dtype: Any) -> bool:
    """Whether numpy does not know a dtype by itself, as bfloat16."""
    return bool(dtype.isbuiltin == 2)


def dtype_name(array: Any) -> str:
    """Returns the dtype of an array as manifests have it."""
    return str(array.dtype.name if _is_foreign(array.dtype) else array.dtype.str)


def dtype_of(part: Part) -> Any:
    """Returns the dtype of an array; that of bytes for a blob.

    InvalidCheckpointError: it is not known here.
    """
    name = "|u1" if part.dtype is None else part.dtype
    try:
        dtype = np.dtype(name)
    except TypeError:
        kind: Any = None
        with contextlib.suppress(ImportError):
            import ml_dtypes

            kind = getattr(ml_dtypes, name, None)
        dtype = np.dtype(kind if isinstance(kind, type) else object)
    if dtype.hasobject or dtype_name(np.empty(0, dtype)) != name:
        raise InvalidCheckpointError(
            f"dtype {name!r} is not known here: it may be one of ml_dtypes, which is missing or "
            "older than where it was written"
        )
    return dtype


def _header(array: Any) -> bytes:
    """Returns the header of an .npy file, which has an integer dtype for one that numpy lacks."""
    plain = array.view(f"u{array.dtype.itemsize}") if _is_foreign(array.dtype) else array
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
    return file.getvalue()


def _pieces(value: Any) -> Iterator[Any]:
    flat = memoryview(value if isinstance(value, bytes) else value.reshape(-1).view(np.uint8))
    for begin in range(0, len(flat), _PIECE):
        yield flat[begin : begin + _PIECE]


def _read_part(stream: IO[bytes], archive: zipfile.ZipFile, name: str, part: Part) -> Any:
    entry = archive.getinfo(_file_of(name, part.dtype is None))
    header = entry.file_size - part.nbytes  # bytes
    if (
        entry.compress_type != zipfile.ZIP_STORED
        or header < 0
        or (part.dtype is None) != (not header)
    ):
        raise InvalidCheckpointError(
            f"{name!r} does not have the {part.nbytes} bytes of its manifest"
        )
    stream.seek(_begin_of(stream, entry))
    # The manifest says what the header of an .npy file does, and numpy's parser is not thread-safe
    # up to Python 3.11.7. The checksum covers both.
    crc = zlib.crc32(stream.read(header))
    value: Any
    if part.dtype is None:
        value = bytearray(part.nbytes)
        target = memoryview(value)
    else:
        dtype = dtype_of(part)
        if math.prod(part.shape) * dtype.itemsize != part.nbytes or not dtype.itemsize:
            raise InvalidCheckpointError(
                f"{name!r} has {part.nbytes} bytes, which is not the size of {dtype} {part.shape}"
            )
        value = np.empty(part.shape, dtype)
        target = memoryview(value.reshape(-1).view(np.uint8))
    if _fill(stream, target, crc) != part.crc32:
        raise InvalidCheckpointError(f"{name!r} is not what was written: its checksum is another")
    return bytes(value) if part.dtype is None else value


def _begin_of(stream: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Returns where the content of a part begins: zipfile would copy it once more."""
    stream.seek(entry.header_offset)
    name, more = struct.unpack("<HH", stream.read(_LOCAL_HEADER)[-4:])  # lengths
    return entry.header_offset + _LOCAL_HEADER + int(name) + int(more)


def _fill(file: IO[bytes], target: memoryview, crc: int) -> int:
    """Reads as many bytes as the target has; returns the CRC-32 of all since `crc`."""
    done = 0
    while done < len(target):
        piece = target[done : done + _PIECE]
        count: int = file.readinto(piece)  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"{len(target) - done} bytes are missing")
        crc = zlib.crc32(piece[:count], crc)
        done += count
    return crc
