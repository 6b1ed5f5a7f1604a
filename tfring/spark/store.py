"""Where estimators keep data, checkpoints and logs: Horovod's stores, on fsspec."""

from __future__ import annotations

import os
import posixpath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]

_TRAIN, _VAL, _TEST = "intermediate_train_data", "intermediate_val_data", "intermediate_test_data"
_RUNS, _LOGS = "runs", "logs"
# What Spark calls a file system that fsspec calls otherwise.
_OF_SPARK = {"s3": "s3a"}
_DBFS = "/dbfs/"


class Store:
    """A folder that the program and all executors reach by the same name.

    A path is of a folder that all hosts have, as NFS makes it, or of one host. "dbfs:/..." is
    Databricks' file system, which all hosts have below /dbfs. Other URLs ("hdfs://...",
    "s3://...") are for fsspec and Spark, who both have to know them.

    Args:
        prefix_path: The folder: a path or a URL.
        train_path: Where training data lies, if not below `prefix_path`.
        val_path: The same for validation data.
        test_path: The same for test data.
        runs_path: The same for runs: their checkpoints and logs.
        save_runs: Whether checkpoints and logs stay after the training.
        storage_options: For fsspec's file system: keys, endpoints.
        checkpoint_filename: The name of a run's model in its folder.
        **other: Horovod's other parameters, also for fsspec's file system. A path takes none.

    Raises:
        TypeError: There is no such parameter.
        ValueError: `checkpoint_filename` does not end in ".keras".
    """

    def __init__(
        self,
        prefix_path: str | os.PathLike[str],
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: dict[str, Any] | None = None,
        checkpoint_filename: str | None = None,
        **other: Any,
    ) -> None:
        self.prefix_path = self._url(os.fspath(prefix_path))
        if other and "://" not in self.prefix_path:
            raise TypeError(f"{type(self).__name__} has no parameters {sorted(other)}")
        self._options = {**(storage_options or {}), **other}
        self._train = self._url(train_path) if train_path else self._below(_TRAIN)
        self._val = self._url(val_path) if val_path else self._below(_VAL)
        self._test = self._url(test_path) if test_path else self._below(_TEST)
        self._runs = self._url(runs_path) if runs_path else self._below(_RUNS)
        self._save_runs = save_runs
        self._checkpoint = checkpoint_filename or "checkpoint.keras"
        if not self._checkpoint.endswith(".keras"):
            raise ValueError(
                f"checkpoint_filename={checkpoint_filename!r}: Keras keeps models in files that "
                'end in ".keras"'
            )

    @classmethod
    def create(cls, prefix_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Store:
        """Returns the store for a folder.

        Args:
            prefix_path: The folder.
            *args: As the store takes them.
            **kwargs: As the store takes them.
        """
        return cls(prefix_path, *args, **kwargs)

    def _url(self, path: str) -> str:
        """Returns a path as fsspec takes it; local ones without a scheme."""
        if path.startswith("dbfs:/"):
            path = _DBFS + path.removeprefix("dbfs:").lstrip("/")
        local = path.removeprefix("file://")
        return path if "://" in local else os.path.abspath(local)

    def _below(self, *names: str) -> str:
        return posixpath.join(self.prefix_path, *names)

    def filesystem(self) -> Any:
        """Returns fsspec's file system; each process makes its own."""
        return fsspec.core.url_to_fs(self.prefix_path, **self._options)[0]

    def path_in_filesystem(self, path: str) -> str:
        """Returns a path of this store as its file system knows it, without a scheme.

        Args:
            path: What a method of this store has returned.
        """
        return str(fsspec.core.url_to_fs(path, **self._options)[1])

    def path_for_spark(self, path: str) -> str:
        """Returns a path of this store as Spark knows it.

        Args:
            path: What a method of this store has returned.
        """
        if path.startswith(_DBFS):
            return f"dbfs:/{path.removeprefix(_DBFS)}"
        scheme, found, rest = path.partition("://")
        if not found:
            return f"file://{os.path.abspath(path)}"
        return f"{_OF_SPARK.get(scheme, scheme)}://{rest}"

    def get_train_data_path(self, idx: object = None) -> str:
        """Returns where training data lies; `idx` tells several apart."""
        return self._train if idx is None else f"{self._train}.{idx}"

    def get_val_data_path(self, idx: object = None) -> str:
        """Returns where validation data lies; `idx` tells several apart."""
        return self._val if idx is None else f"{self._val}.{idx}"

    def get_test_data_path(self, idx: object = None) -> str:
        """Returns where test data lies; `idx` tells several apart."""
        return self._test if idx is None else f"{self._test}.{idx}"

    def saving_runs(self) -> bool:
        """Whether checkpoints and logs stay after the training."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """Returns the folder of all runs."""
        return self._runs

    def get_run_path(self, run_id: str) -> str:
        """Returns the folder of a run."""
        return posixpath.join(self._runs, run_id)

    def get_checkpoint_path(self, run_id: str) -> str:
        """Returns the file with the model of a run."""
        return posixpath.join(self.get_run_path(run_id), self._checkpoint)

    def get_logs_path(self, run_id: str) -> str:
        """Returns the folder with the logs of a run, as TensorBoard reads them."""
        return posixpath.join(self.get_run_path(run_id), _LOGS)

    def get_checkpoint_filename(self) -> str:
        """Returns the name of a run's model in its folder."""
        return self._checkpoint

    def get_logs_subdir(self) -> str:
        """Returns the name of the folder of logs in that of a run."""
        return _LOGS

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder.

        Args:
            path: Its path.
        """
        return bool(self.filesystem().exists(self.path_in_filesystem(path)))

    def read(self, path: str) -> bytes:
        """Returns the content of a file.

        Args:
            path: Its path.
        """
        return bytes(self.filesystem().cat_file(self.path_in_filesystem(path)))

    def write(self, path: str, content: bytes) -> None:
        """Makes or replaces a file; in a local folder and an object store it is seen whole.

        Args:
            path: Its path.
            content: All of it.
        """
        filesystem, place = self.filesystem(), self.path_in_filesystem(path)
        filesystem.makedirs(posixpath.dirname(place), exist_ok=True)
        if isinstance(filesystem, LocalFileSystem):
            filesystem.pipe_file(f"{place}.new", content)
            os.replace(f"{place}.new", place)
        else:
            filesystem.pipe_file(place, content)

    def write_text(self, path: str, text: str) -> None:
        """Makes or replaces a file.

        Args:
            path: Its path.
            text: All of it.
        """
        self.write(path, text.encode())

    def upload(self, folder: str, path: str) -> None:
        """Copies what is in a local folder.

        Args:
            folder: The local folder.
            path: The folder of this store.
        """
        filesystem, place = self.filesystem(), self.path_in_filesystem(path)
        filesystem.makedirs(place, exist_ok=True)
        filesystem.put(f"{folder}/", f"{place}/", recursive=True)

    def remove(self, path: str) -> None:
        """Removes a file or a folder, if there is one.

        Args:
            path: Its path.
        """
        filesystem, place = self.filesystem(), self.path_in_filesystem(path)
        if filesystem.exists(place):
            filesystem.rm(place, recursive=True)


# Horovod's names: one class serves all.
FilesystemStore = LocalStore = Store


class HDFSStore(Store):
    """A store on HDFS; fsspec reaches it through pyarrow, which needs Hadoop's libhdfs."""

    def _url(self, path: str) -> str:
        return path if "://" in path else f"hdfs://{path}"


class DBFSLocalStore(Store):
    """A store in the file system of Databricks."""

    def _url(self, path: str) -> str:
        known = path.startswith(("dbfs:/", "file://", _DBFS))
        return super()._url(path if known else f"dbfs:/{path}")
