"""Holds data, checkpoints and logs of estimators: Horovod's stores, on fsspec."""

from __future__ import annotations

import os
import posixpath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]

_TRAIN, _VAL, _TEST = "intermediate_train_data", "intermediate_val_data", "intermediate_test_data"
_RUNS, _LOGS = "runs", "logs"
# File systems that Spark names differently than fsspec.
_OF_SPARK = {"s3": "s3a"}
_DBFS = "/dbfs/"


class Store:
    """A folder that the program and all executors reach by the same name.

    A path means a folder of all hosts, such as one on NFS, or of a single host. "dbfs:/..." is
    Databricks' file system, which all hosts have below /dbfs. Other URLs ("hdfs://...", "s3://...")
    must be known to both fsspec and Spark.

    Args:
        prefix_path: the folder: a path or a URL.
        train_path: the folder of training data, if not below `prefix_path`.
        val_path: the same for validation data.
        test_path: the same for test data.
        runs_path: the same for runs: their checkpoints and logs.
        save_runs: whether checkpoints and logs stay after the training.
        storage_options: for fsspec's file system: keys, endpoints.
        checkpoint_filename: the name of a run's model in its folder.
        **other: Horovod's other parameters, also for fsspec's file system. A path takes none.

    Raises:
        TypeError: there is no such parameter.
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
                f'checkpoint_filename={checkpoint_filename!r}: it must end in ".keras", the '
                "format of Keras models"
            )

    @classmethod
    def create(cls, prefix_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Store:
        """Returns the store for a folder: an HDFSStore for "hdfs://...".

        Args:
            prefix_path: the folder.
            *args: as in the store.
            **kwargs: as in the store.
        """
        kind = HDFSStore if os.fspath(prefix_path).startswith("hdfs://") else cls
        return kind(prefix_path, *args, **kwargs)

    def _url(self, path: str) -> str:
        """Returns a path for fsspec; local ones without a scheme."""
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
        """Returns a path of this store in its file system's form, without a scheme."""
        return str(fsspec.core.url_to_fs(path, **self._options)[1])

    def path_for_spark(self, path: str) -> str:
        """Returns a path from a method of this store in Spark's form."""
        if path.startswith(_DBFS):
            return f"dbfs:/{path.removeprefix(_DBFS)}"
        scheme, found, rest = path.partition("://")
        if not found:
            return f"file://{os.path.abspath(path)}"
        return f"{_OF_SPARK.get(scheme, scheme)}://{rest}"

    def get_train_data_path(self, idx: object = None) -> str:
        """Returns the path of training data; `idx` distinguishes several."""
        return self._train if idx is None else f"{self._train}.{idx}"

    def get_val_data_path(self, idx: object = None) -> str:
        """Returns the path of validation data; `idx` distinguishes several."""
        return self._val if idx is None else f"{self._val}.{idx}"

    def get_test_data_path(self, idx: object = None) -> str:
        """Returns the path of test data; `idx` distinguishes several."""
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
        """Returns the folder with the logs of a run, for TensorBoard."""
        return posixpath.join(self.get_run_path(run_id), _LOGS)

    def get_checkpoint_filename(self) -> str:
        """Returns the name of a run's model in its folder."""
        return self._checkpoint

    def get_logs_subdir(self) -> str:
        """Returns the name of the log folder inside a run's folder."""
        return _LOGS

    def exists(self, path: str) -> bool:
        """Returns whether a path is an existing file or folder."""
        return bool(self.filesystem().exists(self.path_in_filesystem(path)))

    def is_parquet_dataset(self, path: str) -> bool:
        """Returns whether a folder has Parquet files."""
        found = self.filesystem().find(self.path_in_filesystem(path))
        return any(name.endswith(".parquet") for name in found)

    def read(self, path: str) -> bytes:
        """Returns the content of a file."""
        return bytes(self.filesystem().cat_file(self.path_in_filesystem(path)))

    def write(self, path: str, content: bytes) -> None:
        """Makes or replaces a file; local folders and object stores never show a part of it.

        Args:
            path: its path.
            content: all of it.
        """
        filesystem, place = self.filesystem(), self.path_in_filesystem(path)
        filesystem.makedirs(posixpath.dirname(place), exist_ok=True)
        if isinstance(filesystem, LocalFileSystem):
            filesystem.pipe_file(f"{place}.new", content)
            os.replace(f"{place}.new", place)
        else:
            filesystem.pipe_file(place, content)

    def write_text(self, path: str, text: str) -> None:
        """Makes or replaces a text file."""
        self.write(path, text.encode())

    def upload(self, folder: str, path: str) -> None:
        """Copies the content of a local folder into a folder of this store."""
        filesystem, place = self.filesystem(), self.path_in_filesystem(path)
        filesystem.makedirs(place, exist_ok=True)
        filesystem.put(f"{folder}/", f"{place}/", recursive=True)

    def remove(self, path: str) -> None:
        """Removes a file or a folder, if it exists."""
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
