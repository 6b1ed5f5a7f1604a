"""KerasEstimator and KerasModel: a data frame in, a trained model and its predictions out."""

import keras
import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F

from tfring.spark.backend import SparkBackend
from tfring.spark.data.frames import write
from tfring.spark.data.parquet import ParquetData
from tfring.spark.keras import KerasEstimator, KerasModel
from tfring.spark.keras.saved import model_bytes
from tfring.spark.store import Store

pytestmark = pytest.mark.usefixtures("nothing_left")


def _frame(spark, rows, width=2):
    """`x` is a vector, `a` and `b` its first numbers, `y` their sum, `big` is 1 where it is > 1."""
    names = [f"x{i}" for i in range(width)]
    frame = spark.range(rows, numPartitions=4).select(
        "id", *[F.rand(seed=i).alias(name) for i, name in enumerate(names)]
    )
    frame = VectorAssembler(inputCols=names, outputCol="x").transform(frame)
    total = F.col("x0") + F.col("x1")
    return frame.select(
        "id",
        "x",
        F.col("x0").alias("a"),
        F.col("x1").alias("b"),
        total.alias("y"),
        (total > 1).cast("int").alias("big"),
    )


def _linear(width=2):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])


def test_fit_and_transform(spark, tmp_path):
    frame = _frame(spark, 2000)
    store = Store.create(str(tmp_path / "store"))
    estimator = KerasEstimator(
        model=_linear(),
        optimizer=keras.optimizers.SGD(0.1),
        loss="mse",
        metrics=["mae"],
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=16,
        store=store,
        backend=SparkBackend(2),
        validation=0.2,
        random_seed=7,
        verbose=0,
    )
    model = estimator.setEpochs(4).fit(frame)
    history = model.getHistory()
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    assert len(history["loss"]) == 4 and history["val_mae"][-1] < 0.1 < history["mae"][0]

    predicted = model.transform(frame)
    assert predicted.columns == [*frame.columns, "y__output"]
    errors = [abs(row["y"] - row["y__output"]) for row in predicted.collect()]
    assert len(errors) == 2000 and np.mean(errors) < 0.1
    assert model.getModel().predict(np.array([[1.0, 1.0]]), verbose=0)[0, 0] == pytest.approx(
        2, abs=0.3
    )

    # The data is gone from the store, the checkpoint is the model.
    assert not store.exists(store.get_train_data_path(model.getRunId()))
    checkpoint = KerasModel(
        model=store.read(store.get_checkpoint_path(model.getRunId())),
        feature_columns=["x"],
        label_columns=["y"],
        output_cols=["again"],
    ).transform(predicted)
    both = checkpoint.select("y__output", "again").collect()
    np.testing.assert_allclose([r[0] for r in both], [r[1] for r in both], rtol=1e-6)


def test_more_data_than_memory(spark, tmp_path):
    """2 MB of rows, read and mixed with 512 KB; every row is trained with once an epoch."""
    frame, bound = _frame(spark, 8192, width=64), 1 << 19
    store = Store.create(str(tmp_path / "store"))
    seen = tmp_path / "seen"
    seen.mkdir()

    def note(batch):
        """Says which rows a rank has got; and the most that Arrow and numpy have held."""
        import os

        import pyarrow as pa

        held = pa.default_memory_pool().max_memory()
        with open(f"{seen}/{os.environ['TFRING_X_RANK']}", "a") as file:
            file.write("".join(f"{int(i)} {held}\n" for i in batch["id"]))
        return batch

    estimator = KerasEstimator(
        model=_linear(64),
        optimizer="adam",
        loss="mse",
        feature_cols=["x"],
        label_cols=["y"],
        sample_weight_col="id",
        batch_size=64,
        num_proc=2,
        store=store,
        memory_bytes=bound,
        transformation_fn=note,
        random_seed=3,
        verbose=0,
    )
    model = estimator.fit(frame.withColumn("id", F.col("id").cast("float")))
    lines = [line.split() for path in seen.iterdir() for line in path.read_text().splitlines()]
    assert sorted(int(row) for row, _ in lines) == list(range(8192))
    assert max(int(held) for _, held in lines) < bound
    assert len(model.getHistory()["loss"]) == 1
    assert model.transform(frame).filter("y__output is null").count() == 0


def test_several_inputs_and_outputs(spark, tmp_path):
    """Numbers side by side, whole numbers, lists and vectors as labels; a pipeline; a callback."""
    frame = _frame(spark, 400).withColumn("pair", F.array("a", "b"))
    one, two = keras.Input((1,)), keras.Input((2,))
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([one, two]))
    outputs = [
        keras.layers.Dense(1, "sigmoid", name="big")(hidden),
        keras.layers.Dense(2, name="pair")(hidden),
        keras.layers.Dense(2, name="x")(hidden),
    ]
    model = keras.Model([one, two], outputs)
    model.compile("adam", ["binary_crossentropy", "mse", "mse"])
    estimator = KerasEstimator(
        model=model,
        feature_cols=["a", "x"],
        label_cols=["big", "pair", "x"],
        num_proc=2,
        store=str(tmp_path / "store"),
        callbacks=[keras.callbacks.EarlyStopping("loss", patience=5)],
        epochs=2,
        verbose=0,
    )
    row = Pipeline(stages=[estimator]).fit(frame).transform(frame).first()
    assert row["big__output"] in (0, 1) and isinstance(row["big__output"], int)
    assert len(row["pair__output"]) == 2 and isinstance(row["pair__output"], list)
    assert row["x__output"].toArray().shape == (2,)

    flat = KerasModel(model=_linear(), feature_columns=["a", "b"], label_columns=["none"])
    assert isinstance(flat.transform(frame).first()["none__output"], float)


def test_what_the_model_was_compiled_with(spark, tmp_path):
    """Also the weights of losses; outputs in a dictionary; the rate is that of two ranks."""
    number = keras.Input((1,), name="number")
    outputs = {
        "second": keras.layers.Dense(1, use_bias=False, name="to_y")(number),
        "first": keras.layers.Dense(2, use_bias=False, name="to_x")(number),
    }
    model = keras.Model(number, outputs)
    model.compile(
        keras.optimizers.SGD(0.25),
        {"second": "mse", "first": "mae"},
        loss_weights={"second": 2.0, "first": 0.5},
        weighted_metrics={"second": ["mae"], "first": []},
    )

    class Rate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["rate"] = float(self.model.optimizer.learning_rate)

    def fail(path):
        raise OSError("the file system is away")

    store = Store.create(str(tmp_path / "store"))
    store.remove = fail  # what it costs: not the trained model
    frame = _frame(spark, 64).withColumn("weight", F.lit(1.0)).withColumnRenamed("a", "in.a")
    trained = KerasEstimator(
        model=model,
        feature_cols=["in.a"],
        label_cols=["y", "x"],
        sample_weight_col="weight",
        num_proc=2,
        store=store,
        callbacks=[Rate()],
        verbose=0,
    ).fit(frame)
    history = {name: values[0] for name, values in trained.getHistory().items()}
    assert history["rate"] == 0.5
    weighted = 2 * history["second_loss"] + history["first_loss"] / 2
    assert history["loss"] == pytest.approx(weighted, rel=1e-5)
    assert "second_mae" in history
    row = trained.transform(frame).first()
    assert isinstance(row["y__output"], float) and row["x__output"].toArray().shape == (2,)


def test_predictions_without_a_number(spark):
    frame = _frame(spark, 4).withColumn("a", F.when(F.col("id") > 0, F.col("a")).otherwise(np.nan))
    predicted = KerasModel(model=_linear(), feature_columns=["a", "b"], label_columns=["big"])
    rows = predicted.transform(frame).orderBy("id").collect()
    assert [row["big__output"] is None for row in rows] == [True, False, False, False]
    holes = frame.withColumn("x", F.when(F.col("id") > 0, F.col("x")))
    predicted = KerasModel(model=_linear(), feature_columns=["x"], label_columns=["y"])
    with pytest.raises(Exception, match=r"column 'x' contains nulls"):
        predicted.transform(holes).collect()


def test_goes_on_with_a_run(spark, tmp_path):
    """Parquet that is there already, the best model, and a run of the same name."""
    frame = _frame(spark, 512)
    store = Store.create(str(tmp_path / "store"))
    frame.select("a", "b", "y").write.parquet(store.path_for_spark(store.get_train_data_path()))
    frame.select("a", "b", "y").write.parquet(store.path_for_spark(store.get_val_data_path()))
    estimator = KerasEstimator(
        model=_linear(),
        optimizer=keras.optimizers.SGD(0.05),
        loss=keras.losses.MeanSquaredError(),
        feature_cols=["a", "b"],
        label_cols=["y"],
        num_proc=2,
        store=store,
        run_id="mine",
        validation="y",
        checkpoint_callback=keras.callbacks.ModelCheckpoint(
            "x.keras", "val_loss", save_best_only=True
        ),
        epochs=2,
        verbose=0,
    )
    first = estimator.fit_on_parquet().getHistory()["loss"]
    then = estimator.fit_on_parquet().getHistory()["loss"]
    assert first[0] > first[1] > then[0]
    assert ParquetData(store.filesystem(), store.get_train_data_path()).rows == 512


def test_nothing_in_a_model_from_the_store_runs(spark, tmp_path):
    """Whoever can write to the store could else run code in all ranks."""
    frame, ran = _frame(spark, 64), tmp_path / "ran"
    file = str(ran)
    store = Store.create(str(tmp_path / "store"))

    evil = keras.layers.Lambda(lambda x: (open(file, "w").close(), x)[1], output_shape=(2,))
    hostile = keras.Sequential([keras.Input((2,)), evil, keras.layers.Dense(1)])
    hostile.layers[-1].set_weights([np.ones((2, 1)), np.zeros(1)])
    ran.unlink(missing_ok=True)  # building it has run it
    path = store.get_checkpoint_path("mine")
    store.write(path, model_bytes(hostile))
    estimator = KerasEstimator(
        model=_linear(),
        optimizer=keras.optimizers.SGD(0.0),
        loss="mse",
        feature_cols=["a", "b"],
        label_cols=["y"],
        num_proc=2,
        store=store,
        run_id="mine",
        epochs=1,
        verbose=0,
    )
    model = estimator.fit(frame)
    assert not ran.exists()
    assert model.getHistory()["loss"][0] < 1e-10, "its weights are the store's, which are right"
    store.write(path, model_bytes(_linear(3)))
    with pytest.raises(ValueError, match=r"run_id='mine' from .*its weights do not fit this model"):
        estimator.fit(frame)
    store.write(path, b"no model")
    with pytest.raises(ValueError, match="run_id='mine'"):
        estimator.fit(frame)


def test_rows_for_validation(spark, tmp_path):
    """A column says which; where it says nothing, rows are to train with."""
    frame = _frame(spark, 40).withColumn("held", F.when(F.col("id") % 2 == 0, F.col("id") % 4))
    store = Store.create(str(tmp_path / "store"))
    columns = {"validation": "held", "partitions": None, "memory_bytes": 1 << 20, "seed": None}
    data = write(frame, store, ["a", "y"], run_id="one", **columns)
    assert data.rows == 30 and data.validation is not None
    held = ParquetData(store.filesystem(), store.path_in_filesystem(data.validation))
    assert held.rows == 10


def test_what_cannot_be_trained(spark, tmp_path):
    frame = _frame(spark, 8).withColumns({"text": F.lit("x"), "all": F.lit(1)})
    good = {
        "model": _linear(),
        "optimizer": "sgd",
        "loss": "mse",
        "feature_cols": ["a", "b"],
        "label_cols": ["y"],
        "num_proc": 1,
        "store": str(tmp_path / "store"),
        "verbose": 0,
    }
    weights = keras.callbacks.ModelCheckpoint("x.weights.h5", save_weights_only=True)
    best = keras.callbacks.ModelCheckpoint("x.keras", "val_loss", save_best_only=True)
    for changed, kind, message in (
        ({"store": None}, ValueError, "needs store: Holds data"),
        ({"loss": None}, ValueError, "needs loss"),
        ({"backend": SparkBackend(1)}, ValueError, "num_proc=1 and backend="),
        ({"feature_cols": ["a", "gone"]}, ValueError, r"no columns \['gone'\]"),
        ({"feature_cols": ["a", "text"]}, TypeError, "column 'text' holds string"),
        ({"validation": 1.5}, ValueError, "validation=1.5"),
        (
            {"validation": 1e-9},
            ValueError,
            "no rows for validation: .* for validation=1e-0",
        ),
        ({"validation": "all"}, ValueError, "no rows to train with: .* validation='all'"),
        ({"label_cols": ["y", "a"]}, ValueError, "the model has 1 outputs"),
        ({"feature_cols": ["x", "a"]}, ValueError, r"have 3 numbers per row, .* \(2,\), takes 2"),
        ({"transformation_removed_fields": ["a"]}, NotImplementedError, "must keep the columns"),
        ({"no_such": 1}, TypeError, "no parameter 'no_such'"),
        ({"random_seed": -1}, ValueError, "random_seed=-1"),
        ({"checkpoint_callback": weights}, ValueError, "without save_weights_only=True"),
        ({"checkpoint_callback": best}, ValueError, "'val_loss', but there are no validation rows"),
    ):
        with pytest.raises(kind, match=message):
            KerasEstimator(**{**good, **changed}).fit(frame)


def test_setters_of_horovod(spark):
    """Also those of parameters that have no effect, and those with names of their own."""
    estimator = KerasEstimator(reader_pool_type="process", inmemory_cache_all=True)
    assert estimator.getReaderPoolType() == "process" and estimator.getInMemoryCacheAll()
    estimator.setShufflingBufferSize(7).setTrainReaderNumWorker(3).setCompressSparseCols(True)
    assert estimator.getShuffleBufferSize() == estimator.getShufflingBufferSize() == 7
    assert estimator.setParams(epochs=3, batch_size=5).getEpochs() == 3
    assert KerasModel().setLabelColoumns(["y"]).getLabelColumns() == ["y"]
    with pytest.raises(NotImplementedError, match="must keep the columns"):
        estimator.setTransformationRemovedFields(["a"])
    with pytest.raises(TypeError, match="no parameter 'no_such'"):
        estimator.setParams(no_such=1)
