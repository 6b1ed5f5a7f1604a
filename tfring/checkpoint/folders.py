"""Where checkpoints lie: a folder of files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from typing import IO, Any, cast

from tfring.checkpoint.errors import InvalidCheckpointError

_FLOW = 32 << 20  # bytes
Fill = Callable[[IO[bytes]], None]  # writes the content of a file
Gate = Callable[[], None]  # raises if the file must not appear


class LocalFolder:
    """A folder of a file system: temporary name, fsync, rename, fsync of the folder.

    Made when it is first written to.
    """

    rereads = True  # reading a file again right after writing it costs little

    def __init__(self, path: str) -> None:
        """Sets the path of the folder."""
        self._path = os.path.abspath(path)

    def __str__(self) -> str:
        return self._path

    def names(self) -> list[str]:
        """Returns the names of all files; none if there is no folder."""
        try:
            with os.scandir(self._path) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def open(self, name: str) -> IO[bytes]:
        """Opens a file for reading. Waits for nobody, as at a pipe.

        FileNotFoundError: there is none. InvalidCheckpointError: it is a folder, a pipe or the
        like.
        """
        return open(self._at(name), "rb", opener=_regular_file)

    def size(self, name: str) -> int:
        """Returns a file's size in bytes; FileNotFoundError if there is none."""
        return os.stat(self._at(name)).st_size

    def write(self, name: str, fill: Fill) -> None:
        """Makes a new file, whose content `fill` writes, and which outlives a loss of power."""
        self._write(name, fill, lambda: None)

    def create(self, name: str, content: bytes) -> bool:
        """Makes a small file and returns True, unless there is one of this name.

        Of several processes one does. Nobody else writes the same content.
        """
        os.makedirs(self._path, exist_ok=True)
        path = self._at(name)
        try:
            with open(path, "xb") as file:
                try:
                    _write_through(file, content)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                    raise
        except FileExistsError:
            return False
        self._sync()
        return True

    def publish(self, name: str, content: bytes, gate: Gate) -> None:
        """Makes or replaces a small file, which is seen whole or not at all.

        `gate` is called right before the file appears.
        """

        def fill(file: IO[bytes]) -> None:
            file.write(content)

        self._write(name, fill, gate)

    def _write(self, name: str, fill: Fill, gate: Gate) -> None:
        os.makedirs(self._path, exist_ok=True)
        temporary = self._at(f"{name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(temporary, "xb") as file:
                fill(cast(IO[bytes], _Flowing(file)))
                _write_through(file)
                # Who reads it back gets what is on the disk, and memory is left to training.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            gate()
            os.replace(temporary, self._at(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._sync()

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self._path, _plain(name))

    def _sync(self) -> None:
        """Makes the names in the folder outlive a loss of power."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemoteFolder:
    """As LocalFolder, of any storage that fsspec knows: S3, Google Cloud Storage, HDFS, memory.

    Such a storage has no rename that is atomic. What is written there counts only when its manifest
    is there, which is small and comes last.
    """

    rereads = False

    def __init__(self, url: str, **options: Any) -> None:
        """Opens the storage at a URL ("s3://bucket/folder"), with options of its driver.

        ImportError: there is no fsspec, or none of its packages for this storage.
        """
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f"checkpoints at {url} need fsspec: pip install tfring[checkpoint], and the "
                "package of the storage, s3fs for s3:// or gcsfs for gs://"
            ) from error
        self._url = url
        self._storage, path = fsspec.core.url_to_fs(url, **options)
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def names(self) -> list[str]:
        """Returns the names of all files; none if there is no folder."""
        self._storage.invalidate_cache(self._path)
        try:
            found = self._storage.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in found]

    def open(self, name: str) -> IO[bytes]:
        """Opens a file for reading."""
        file: IO[bytes] = self._storage.open(self._at(name), "rb")
        return file

    def size(self, name: str) -> int:
        """Returns a file's size in bytes."""
        self._storage.invalidate_cache(self._path)
        return int(self._storage.info(self._at(name))["size"])

    def write(self, name: str, fill: Fill) -> None:
        """Makes a file; most storages show it when it is closed."""
        self._storage.makedirs(self._path, exist_ok=True)
        try:
            with self._storage.open(self._at(name), "wb") as file:
                fill(file)
        except BaseException:
            with contextlib.suppress(Exception):
                self.remove(name)
            raise

    def create(self, name: str, content: bytes) -> bool:
        """Makes a small file unless there is one.

        By one conditional request where the driver has it, as s3fs (If-None-Match) and gcsfs do.
        Others look first and write then; reading back tells those apart that did so together.
        """
        self._storage.makedirs(self._path, exist_ok=True)
        try:
            self._storage.pipe_file(self._at(name), content, mode="create")
        except OSError:  # drivers differ in what they raise if there is one
            if not self._storage.exists(self._at(name)):
                raise
        return bool(self._storage.cat_file(self._at(name)) == content)

    def publish(self, name: str, content: bytes, gate: Gate) -> None:
        """Makes or replaces a small file by one request."""
        gate()
        self._storage.pipe_file(self._at(name), content)

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._storage.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}/{_plain(name)}"


Folder = LocalFolder | RemoteFolder  # names are those of files in it, not paths


def _plain(name: str) -> str:
    """Refuses a path: nothing outside of the folder is read, written or removed."""
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise ValueError(f"{name!r} is no name of a file in a folder of checkpoints")
    return name


class _Flowing:
    """A file whose bytes begin their way to the disk while more are written.

    Otherwise the system may begin when all of it is in memory, and the disk stands still until
    then.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._done = self._begun = 0  # bytes

    def write(self, data: Any) -> int:
        self._done += len(data)
        count = self._file.write(data)
        if self._done - self._begun >= _FLOW:
            length = self._done - self._begun
            os.posix_fadvise(self._file.fileno(), self._begun, length, os.POSIX_FADV_DONTNEED)
            self._begun = self._done
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _write_through(file: IO[bytes], content: bytes = b"") -> None:
    """Writes, and brings all of the file to the disk."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _regular_file(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise InvalidCheckpointError(f"{path} is no regular file")


def folder_at(path: Any, **options: Any) -> Folder:
    """Returns the folder of a path, of "file://...", or of a URL that fsspec knows.

    Raises:
        ImportError: The URL needs a package that is not installed.
        TypeError: Options for a path of the file system, which takes none.
        ValueError: The path is empty.
    """
    place = os.fspath(path)
    if not place:
        raise ValueError(
            "checkpoints: the path of the folder is empty. A variable that it is made of probably "
            "is: give the path, '.' for this folder"
        )
    if "://" in place and not place.startswith("file://"):
        return RemoteFolder(place, **options)
    if options:
        raise TypeError(f"checkpoints in {place}: only URLs have options, not {sorted(options)}")
    return LocalFolder(place.removeprefix("file://"))
