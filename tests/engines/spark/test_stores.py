"""Where estimators keep their files: paths as users write them."""

import os

import pytest

from tfring.spark.store import DBFSLocalStore, HDFSStore, LocalStore, Store


def test_paths_of_its_own(tmp_path, monkeypatch):
    """All ranks find them, whatever their folder: relative ones are the program's."""
    monkeypatch.chdir(tmp_path)
    store = Store.create("store", train_path="train", val_path="file:///data/val")
    monkeypatch.chdir("/")
    assert store.get_train_data_path(1) == f"{tmp_path}/train.1"
    assert store.get_val_data_path() == "/data/val"
    assert store.get_runs_path() == os.path.join(tmp_path, "store", "runs")
    assert DBFSLocalStore("dbfs:/a", runs_path="dbfs:/b").get_runs_path() == "/dbfs/b"
    assert HDFSStore("/a", test_path="/b").get_test_data_path() == "hdfs:///b"


@pytest.mark.parametrize(
    ("given", "fsspec", "spark"),
    [
        ("file:///data", "/data", "file:///data"),
        ("dbfs:/data", "/dbfs/data", "dbfs:/data"),
        ("/dbfs/data", "/dbfs/data", "dbfs:/data"),
        ("file:///dbfs/data", "/dbfs/data", "dbfs:/data"),
        ("hdfs://name/data", "hdfs://name/data", "hdfs://name/data"),
        ("s3://bucket/data", "s3://bucket/data", "s3a://bucket/data"),
    ],
)
def test_paths_for_fsspec_and_spark(given, fsspec, spark):
    store = Store.create(given)
    assert store.prefix_path == fsspec
    assert store.path_for_spark(store.prefix_path) == spark
    assert isinstance(store, HDFSStore) == given.startswith("hdfs")


def test_a_folder_with_parquet_files(tmp_path):
    store = Store.create(tmp_path)
    assert not store.is_parquet_dataset(str(tmp_path))
    store.write(f"{tmp_path}/train/part-0.parquet", b"rows")
    assert store.is_parquet_dataset(f"{tmp_path}/train")


def test_misspelt_parameters(tmp_path):
    with pytest.raises(TypeError, match=r"Store has no parameters \['save_run'\]"):
        LocalStore(tmp_path, save_run=False)
    with pytest.raises(ValueError, match=r'end in "\.keras"'):
        LocalStore(tmp_path, checkpoint_filename="model.h5")
