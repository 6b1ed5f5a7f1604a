"""KerasEstimator: Horovod's estimator of Spark ML, on tfring."""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from pyspark.ml import Estimator

from tfring.spark.backend import Backend, SparkBackend
from tfring.spark.data.frames import Prepared, prepared, write
from tfring.spark.keras.model import KerasModel
from tfring.spark.keras.params import ESTIMATOR, set_defaults, set_params, with_params
from tfring.spark.keras.saved import (
    compiled_with,
    model_bytes,
    model_of,
    optimizer_config,
    packed,
    with_weights,
)
from tfring.spark.keras.shapes import Arrangement
from tfring.spark.keras.training import Plan, Trained, train
from tfring.spark.store import Store

_log = logging.getLogger("tfring")

_PLAIN = (
    "use_gpu",
    "random_seed",
    "backward_passes_per_step",
    "epochs",
    "train_steps_per_epoch",
    "validation_steps_per_epoch",
    "verbose",
    "batch_size",
    "val_batch_size",
    "memory_bytes",
    "shuffle",
    "shuffle_buffer_size",
    "sample_weight_col",
)
_OBJECTS = (
    "gradient_compression",
    "label_shapes",
    "callbacks",
    "checkpoint_callback",
    "transformation_fn",
)
# Arguments of Keras' `compile`, and whether each is required.
_COMPILED = {
    "optimizer": True,
    "loss": True,
    "loss_weights": False,
    "metrics": False,
    "weighted_metrics": False,
}


@with_params(ESTIMATOR)
class KerasEstimator(Estimator):  # type: ignore[misc]
    """Trains a Keras model on the rows of a data frame, on several ranks; Horovod's parameters.

    `fit(data_frame)` writes the needed columns as Parquet into the store, and trains in tasks of
    Spark. Each rank reads its part while it trains, within `memory_bytes`. The result is a
    `KerasModel`.

    Args:
        **params: parameters, each with a setter and a getter; tfring/spark/keras/params.py and
            `tfring help spark` list them.

    Raises:
        TypeError: there is no such parameter.
        NotImplementedError: tfring does not support this parameter of Horovod.
    """

    def __init__(self, **params: Any) -> None:
        super().__init__()
        set_defaults(self, ESTIMATOR)
        self.setParams(**params)

    def setParams(self, **params: Any) -> Any:
        """Sets parameters; returns this object.

        Args:
            **params: as in the constructor.
        """
        return set_params(self, ESTIMATOR, params)

    def fit_on_parquet(self, dataset_idx: object = None) -> KerasModel:
        """Trains on Parquet files that are already in the store.

        Args:
            dataset_idx: which: `store.get_train_data_path(dataset_idx)` is their folder. The files
                for validation are used if `validation` is set.
        """
        self._check()
        store = self._store()
        validation = store.get_val_data_path(dataset_idx)
        data = prepared(
            store,
            store.get_train_data_path(dataset_idx),
            validation if self.getOrDefault("validation") else None,
            self._columns(),
        )
        return self._train(data, self._run_id())

    def _fit(self, dataset: Any) -> KerasModel:
        """Spark ML's `fit` calls it."""
        self._check()
        store, run_id = self._store(), self._run_id()
        per_process = self.getOrDefault("partitions_per_process")
        try:
            data = write(
                dataset,
                store,
                self._columns(),
                run_id=run_id,
                validation=self.getOrDefault("validation"),
                partitions=per_process and per_process * self._backend().num_processes(),
                memory_bytes=self.getOrDefault("memory_bytes"),
                seed=self.getOrDefault("random_seed"),
            )
            return self._train(data, run_id)
        finally:
            for path in (store.get_train_data_path(run_id), store.get_val_data_path(run_id)):
                try:
                    store.remove(path)
                except Exception as error:  # an error of any file system; the model is worth more
                    _log.warning("%s could not be removed from the store: %s", path, error)

    def _train(self, data: Prepared, run_id: str) -> KerasModel:
        custom = self.getOrDefault("custom_objects")
        model = self._needed("model")
        features, labels = self._needed("feature_cols"), self._needed("label_cols")
        Arrangement.of(model, features, labels).check(
            data.columns
        )  # otherwise every rank would fail
        objects = {**_compiled(model, self), **{n: self.getOrDefault(n) for n in _OBJECTS}}
        optimizer = objects.pop("optimizer")
        plan = Plan(
            self._model_to_train(model, data.store, run_id),
            optimizer_config(optimizer),
            packed(objects, custom),
            {name: self.getOrDefault(name) for name in _PLAIN},
            data,
            tuple(features),
            tuple(labels),
            run_id,
        )
        env = self.getOrDefault("backend_env")
        results: list[Trained | None] = self._backend().run(train, args=(plan,), env=env)
        trained = results[0]
        assert trained is not None
        model_of(trained.model, custom)  # otherwise the first transform would fail
        return KerasModel(
            model=trained.model,
            feature_columns=list(features),
            label_columns=list(labels),
            custom_objects=custom,
            history=trained.history,
            run_id=run_id,
        )

    def _model_to_train(self, model: Any, store: Store, run_id: str) -> bytes:
        """Returns the model, with the weights of this run if the store has it."""
        path = store.get_checkpoint_path(run_id)
        if not (self.isSet("run_id") and store.exists(path)):
            return model_bytes(model)
        try:
            return with_weights(model, store.read(path), self.getOrDefault("custom_objects"))
        except ValueError as error:
            raise ValueError(
                f"KerasEstimator cannot resume run_id={run_id!r} from {path}: {error}. Give it "
                "the model of that run, or another run_id"
            ) from error

    def _check(self) -> None:
        """Refuses parameters that cannot be trained with, before anything is written."""
        model = self._needed("model")
        Arrangement.of(model, self._needed("feature_cols"), self._needed("label_cols"))
        _compiled(model, self)
        self._backend()
        seed = self.getOrDefault("random_seed")
        if seed is not None and seed < 0:
            raise ValueError(f"random_seed={seed}: it must be 0 or more")
        best = self.getOrDefault("checkpoint_callback")
        if getattr(best, "save_weights_only", False):
            raise ValueError(
                "checkpoint_callback must keep whole models. Make it without save_weights_only=True"
            )
        monitor = str(getattr(best, "monitor", ""))
        validates = self.getOrDefault("validation")
        if getattr(best, "save_best_only", False) and monitor.startswith("val_") and not validates:
            raise ValueError(
                f"checkpoint_callback chooses by {monitor!r}, but there are no validation rows. "
                "Set validation, or choose by 'loss'"
            )

    def _backend(self) -> Backend:
        backend, number = self.getOrDefault("backend"), self.getOrDefault("num_proc")
        if backend is not None and number is not None:
            raise ValueError(f"num_proc={number} and backend={backend}: give only one of them")
        found: Backend = backend or SparkBackend(number)
        return found

    def _store(self) -> Store:
        store = self._needed("store")
        return store if isinstance(store, Store) else Store.create(store)

    def _run_id(self) -> str:
        given = self.getOrDefault("run_id")
        return given or f"keras_{int(time.time())}_{secrets.token_hex(4)}"

    def _columns(self) -> list[str]:
        weight = self.getOrDefault("sample_weight_col")
        columns = [*self._needed("feature_cols"), *self._needed("label_cols")]
        return [*columns, weight] if weight else columns

    def _needed(self, name: str) -> Any:
        value = self.getOrDefault(name)
        if value is None:
            raise ValueError(f"KerasEstimator needs {name}: {ESTIMATOR[name][1]}")
        return value


def _compiled(model: Any, estimator: KerasEstimator) -> dict[str, Any]:
    """Returns optimizer, loss and so on: the parameters, or those of the compiled model."""
    custom, found = estimator.getOrDefault("custom_objects"), {}
    for name, needed in _COMPILED.items():
        value = estimator.getOrDefault(name) if name in ESTIMATOR else None
        value = compiled_with(model, name, custom) if value is None else value
        if value is None and needed:
            raise ValueError(f"KerasEstimator needs {name}: {ESTIMATOR[name][1]}")
        found[name] = value
    return found
