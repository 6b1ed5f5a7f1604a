"""Keras 2 idioms on Keras 3, under the shim. docs/migration.md has a table of them.

Each runs twice, warns once, and says what to write. One process runs all that belong to one Keras.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shutil
import tempfile
from pathlib import Path

import launcher_tools as tools
import pytest

# By idiom: what each of its warnings contains, and the program.
IDIOMS: dict[str, tuple[list[str], str]] = {
    "optimizer.variables()": (
        ["optimizer.variables()"],
        """
        opt = keras.optimizers.Adam()
        assert len(opt.variables()) == len(opt.variables)
        if hasattr(keras, "tree"):  # before Keras 3.3 it has no public name
            numbers = keras.tree.map_structure(number, {"optimizer": opt.variables})
            assert numbers == {"optimizer": [number(v) for v in opt.variables]}
        """,
    ),
    "optimizer.lr": (
        ["optimizer.lr"],
        """
        opt = keras.optimizers.SGD(0.1)
        opt.lr = 0.5
        assert number(opt.lr) == 0.5 == number(opt.learning_rate)
        """,
    ),
    "backend.set_value": (
        ["backend.set_value", "keras.backend.get_value"],
        """
        for K in (tf.keras.backend, keras.backend):
            opt = tf.keras.optimizers.SGD(0.1)
            K.set_value(opt.learning_rate, 0.25)
            assert K.get_value(opt.learning_rate) == 0.25
        opt = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
        try:
            keras.backend.set_value(opt.learning_rate, 0.25)
        except TypeError as error:
            assert "The learning rate follows a schedule and cannot be set." in str(error)
        else:
            raise AssertionError("set")
        """,
    ),
    "compile(experimental_run_tf_function=)": (
        ["compile(experimental_run_tf_function=...)"],
        'model().compile("sgd", "mse", experimental_run_tf_function=False)',
    ),
    "compile(experimental_steps_per_execution=)": (
        ["write steps_per_execution="],
        """
        made = model()
        made.compile("sgd", "mse", experimental_steps_per_execution=2)
        assert made.steps_per_execution == 2
        """,
    ),
    "optimizers.legacy": (
        ["tf.keras.optimizers.legacy.SGD"],
        """
        legacy = tf.keras.optimizers.legacy
        opt = legacy.SGD(0.1, momentum=0.9)
        assert isinstance(opt, legacy.SGD) and isinstance(opt, legacy.Optimizer)
        assert not isinstance(opt, legacy.Adam) and opt.learning_rate == 0.1
        assert legacy.optimizer_v2.OptimizerV2 is keras.optimizers.Optimizer
        opt = legacy.SGD.from_config({"learning_rate": 0.5, "momentum": 0.9, "decay": 0.0})
        assert isinstance(opt, keras.optimizers.SGD) and number(opt.learning_rate) == 0.5
        """,
    ),
    "fit_generator": (["fit_generator"], "model().fit_generator(batches(), 3, 1, 0, workers=2)"),
    "evaluate_generator": (["evaluate_generator"], "model().evaluate_generator(batches(), 2)"),
    "predict_generator": (
        ["predict_generator"],
        "model().predict_generator(((x,) for x, _ in batches()), 2)",
    ),
    "fit(workers=)": (
        ["workers", "use_multiprocessing", "max_queue_size"],
        """
        x, y = np.ones((4, 3)), np.ones((4, 1))
        model().fit(x, y, verbose=0, workers=2, use_multiprocessing=True, max_queue_size=2)
        """,
    ),
    "lr=": (
        ["optimizer(lr=...)"],
        """
        for module in (keras.optimizers, tf.keras.optimizers):
            for name in ("Adadelta Adagrad Adam AdamW Adamax Adafactor Ftrl Lion Nadam RMSprop "
                         "SGD").split():
                assert number(getattr(module, name)(lr=0.5).learning_rate) == 0.5, name
        """,
    ),
    "decay=": (
        ["optimizer(decay=...)"],
        """
        v = keras.Variable([0.0])
        opt = keras.optimizers.SGD(learning_rate=0.5, decay=0.1)
        for _ in range(3):
            opt.apply([tf.constant([1.0])], [v])
        assert abs(float(v[0]) + sum(0.5 / (1 + 0.1 * i) for i in range(3))) < 1e-6
        assert number(keras.optimizers.Adam(0.5, decay=0.0).learning_rate) == 0.5
        opt = keras.optimizers.SGD(np.float32(0.5), decay=0.1)
        assert number(opt.learning_rate) == 0.5
        """,
    ),
    "losses.mean_squared_error": (
        ["keras.losses.MSE", "keras.losses.MAPE", "keras.losses.KLD", "keras.metrics.MSE"],
        """
        a, b = tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 4.0]])
        for module in (keras.losses, tf.keras.losses, keras.metrics, tf.keras.metrics):
            assert float(module.MSE(a, b)[0]) == float(module.mean_squared_error(a, b)[0]) == 2.5
        for module in (keras.losses, tf.keras.losses):
            assert float(module.mean_absolute_error(a, b)[0]) == 1.5
            module.log_cosh, module.MAPE, module.KLD
            assert not hasattr(module, "no_such_loss")
        model().compile("sgd", tf.keras.losses.mean_squared_error)
        """,
    ),
    "ImageDataGenerator": (
        ["keras.preprocessing.image.ImageDataGenerator"],
        """
        generator = keras.preprocessing.image.ImageDataGenerator
        assert generator is tf.keras.preprocessing.image.ImageDataGenerator
        assert generator(rescale=0.5).rescale == 0.5
        """,
    ),
    "BatchNormalization(fused=)": (
        ["BatchNormalization(fused=...)"],
        """
        layer = keras.layers.BatchNormalization(momentum=0.5, fused=False)
        assert layer.momentum == 0.5 and layer(np.ones((2, 3))).shape == (2, 3)
        """,
    ),
    "variable.ref()": (
        ["variable.ref()"],
        """
        one, other = model().weights
        names = {one.ref(): "one", other.ref(): "other"}
        assert names[one.ref()] == "one" and one.ref() != other.ref() and one.ref().deref() is one
        with tf.GradientTape() as tape:
            one + other
        assert {v.ref() for v in tape.watched_variables()} == set(names)
        """,
    ),
    "Optimizer(name=)": (
        ["Adds(name=...)", "AddsMore(name=...)", "_resource_apply_dense"],
        """
        class Adds(tf.keras.optimizers.legacy.optimizer_v2.OptimizerV2):
            def _resource_apply_dense(self, grad, var, apply_state=None):
                return var.assign_add(grad)

        class Own(keras.optimizers.Optimizer):
            def __init__(self, name="Own", **kwargs):
                super().__init__(name=name, **kwargs)

            def update_step(self, gradient, variable, learning_rate):
                variable.assign_add(gradient * learning_rate)

        class AddsMore(Adds):
            pass

        for opt in (Adds("test"), AddsMore("test"), Own("test", lr=1.0), Own(learning_rate=1.0)):
            v = keras.Variable([1.0])
            opt.apply_gradients([(tf.constant([2.0]), v)])
            assert float(v[0]) == 3.0 and opt.name in ("test", "Own")
        """,
    ),
    "optimizer._compute_gradients": (
        ["optimizer._compute_gradients"],
        """
        v = keras.Variable([1.0])
        opt = keras.optimizers.SGD(1.0)
        ((gradient, variable),) = opt._compute_gradients(lambda: v * v, [v])
        assert variable is v and float(gradient[0]) == 2.0
        with tf.GradientTape() as tape:
            loss = v * 3.0
        assert float(opt._compute_gradients(loss, [v], tape=tape)[0][0][0]) == 3.0
        """,
    ),
    "optimizer._agg_helper": (
        [],
        """
        v = keras.Variable([1.0])
        opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        for counter in (1, 0, 1):
            opt.apply([tf.constant([1.0])], [v])
            assert opt._agg_helper.counter.numpy() == counter
        assert not hasattr(keras.optimizers.SGD(), "_agg_helper")
        """,
    ),
    "apply_gradients(experimental_aggregate_gradients=)": (
        ["apply_gradients(experimental_aggregate_gradients=...)", "apply_gradients(name=...)"],
        """
        v = keras.Variable([1.0])
        opt = keras.optimizers.SGD(1.0)
        pairs = [(tf.constant([1.0]), v)]
        opt.apply_gradients(pairs, name="x", experimental_aggregate_gradients=False)
        opt.apply_gradients(pairs, "x")
        assert float(v[0]) == -1.0
        """,
    ),
}
# Warnings that depend on which names a version of Keras has.
VARYING = {"losses.mean_squared_error": ["s.mean_squared_error", "mean_absolute_error", "log_cosh"]}
# What Keras 3 cannot do is an error that says how to get Keras 2.
REFUSED: dict[str, str] = {
    "gradient_transformers=": "keras.optimizers.SGD(gradient_transformers=[len])",
    "decay= of a schedule": (
        "keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), decay=0.1)"
    ),
    "compile(sample_weight_mode=)": (
        'model().compile("sgd", "mse", sample_weight_mode="temporal")'
    ),
    "a class of legacy.Adam": 'type("Mine", (tf.keras.optimizers.legacy.Adam,), {})',
    "SGD with _resource_apply_dense": (
        'type("Mine", (keras.optimizers.SGD,), {"_resource_apply_dense": len})()'
    ),
    "methods that only Keras 2 calls": """
        names = "_compute_gradients get_gradients _prepare _prepare_local"
        for name in names.split():
            for base in (keras.optimizers.SGD, keras.optimizers.Optimizer):
                own = {"_resource_apply_dense": len} if base is keras.optimizers.Optimizer else {}
                try:
                    type("Mine", (base,), {name: len, **own})(learning_rate=1.0)
                except TypeError as error:
                    found = error
                    assert f"Mine.{name}" in str(error), error
                else:
                    raise AssertionError(name)
        raise found
    """,
    "_resource_apply_sparse": """
        class Adds(keras.optimizers.Optimizer):
            def _resource_apply_dense(self, grad, var, apply_state=None):
                return var.assign_add(grad)

            def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
                return var.scatter_add(tf.IndexedSlices(grad, indices))

        opt, v = Adds(name="test"), keras.Variable([[1.0], [1.0]])
        opt.apply_gradients([(tf.constant([[2.0], [1.0]]), v)])
        assert float(v[0, 0]) == 3.0
        opt.apply_gradients([(tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1])), v)])
    """,
    "_set_hyper and slots": """
        names = "_set_hyper _get_hyper add_slot get_slot _build_learning_rate"
        for name in names.split():
            try:
                getattr(keras.optimizers.SGD(), name)("learning_rate", 0.1)
            except TypeError as error:
                found = error
                assert f"optimizer.{name}" in str(error), error
            else:
                raise AssertionError(name)
        raise found
    """,
    "decay= without a rate": "keras.optimizers.Optimizer(0.1, decay=0.1)",
    "update_step(gradient, variable)": """
        class Own(keras.optimizers.Optimizer):
            def __init__(self, name="Own", **kwargs):
                super().__init__(name=name, **kwargs)

            def update_step(self, gradient, variable):
                variable.assign_sub(gradient)

        Own()
    """,
    "_compute_gradients of a LossScaleOptimizer": (
        "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())._compute_gradients(len, [])"
    ),
}
FORGOTTEN = """
    class Own(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            variable.assign_add(gradient * learning_rate)

    Own(name="Own")
"""
RUN = """
    import json, sys, textwrap, traceback, warnings
    import horovod.tensorflow.keras as hvd
    import numpy as np
    assert "keras" not in sys.modules
    import tensorflow as tf
    import keras

    hvd.init()

    def model():
        made = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    def number(variable):
        return float(variable.numpy())  # before Keras 3.5 float() does not take a variable

    def batches():
        return ((np.ones((4, 3)), np.ones((4, 1))) for _ in range(9))

    for name, text in json.load(open(sys.argv[1])).items():
        program = compile(textwrap.dedent(text), name, "exec")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                for _ in range(2):
                    exec(program, dict(globals()))
                error = ""
            except Exception as exception:
                error = traceback.format_exc()
        ours = [w for w in caught if " is Keras 2 syntax: " in str(w.message)]
        said = [(str(w.message), w.filename) for w in ours]
        print()  # after a progress bar
        print("IDIOM", json.dumps([name, said, error]))
"""


@functools.cache
def outcomes() -> dict[str, tuple[list[tuple[str, str]], str]]:
    """What each program has warned of with the file of each warning, and its error, by idiom."""
    programs = {name: text for name, (_, text) in IDIOMS.items()} | REFUSED
    programs[FORGOTTEN] = FORGOTTEN
    folder = Path(tempfile.mkdtemp())
    (folder / "programs").write_text(json.dumps(programs))
    script = tools.write_script(folder, RUN)
    done = tools.run_python("-m", "tfring.horovod", script, str(folder / "programs"))
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in re.findall(r"^IDIOM (.*)$", done.stdout, re.MULTILINE)]
    return {name: (said, error) for name, said, error in found}


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom(name: str) -> None:
    said, error = outcomes()[name]
    assert not error, error
    texts = [text for text, _ in said]
    allowed = IDIOMS[name][0] + VARYING.get(name, [])
    assert all(any(expected in text for expected in allowed) for text in texts), texts
    for expected in IDIOMS[name][0]:
        assert len([text for text in texts if expected in text]) == 1, texts
    assert {file for _, file in said} <= {name}, said  # the program's, not one of tfring or Keras


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    _, error = outcomes()[name]
    assert "TypeError" in error and "set TF_USE_LEGACY_KERAS=1 and install tf_keras" in error


def test_a_class_with_an_update_step_needs_a_rate() -> None:
    """As in Keras 3 without the shim: a rate of 1.0 would be a guess."""
    assert "missing 1 required positional argument: 'learning_rate'" in outcomes()[FORGOTTEN][1]


def test_each_idiom_is_in_the_documentation() -> None:
    """docs/migration.md names a test for each, as test_idiom[lr=]."""
    page = (tools.ROOT / "docs" / "migration.md").read_text()
    named = re.findall(r"`test_(idiom|refused|keras_2)\[([^`]*)\]`", page)
    idioms = [("idiom", name) for name in IDIOMS]
    refused = [("refused", name) for name in REFUSED]
    assert sorted(named) == sorted([*idioms, *refused, *(("keras_2", name) for name in KERAS_2)])


# The same idioms with TF_USE_LEGACY_KERAS=1, where Keras 2 has it, and ignores some of it.
KERAS_2 = {
    "lr=": """
        for name in "Adadelta Adagrad Adam AdamW Adamax Ftrl Nadam RMSprop SGD".split():
            opt = getattr(tf.keras.optimizers, name)(lr=0.5)
            assert float(opt.learning_rate) == 0.5, name
            assert float(type(opt).from_config(opt.get_config()).learning_rate) == 0.5
        assert float(tf.keras.optimizers.SGD(0.25).learning_rate) == 0.25
        assert float(tf.keras.optimizers.legacy.SGD(lr=0.5).learning_rate) == 0.5
    """,
    "methods that only legacy optimizers call": """
        names = "_compute_gradients get_gradients _prepare _prepare_local "
        for name in (names + "_resource_apply_dense _resource_apply_sparse").split():
            try:
                type("Mine", (tf.keras.optimizers.SGD,), {name: len})()
            except TypeError as error:
                assert f"Mine.{name}" in str(error) and "optimizers.legacy" in str(error)
            else:
                raise AssertionError(name)
            type("Mine", (tf.keras.optimizers.legacy.SGD,), {name: len})()
    """,
    "decay=": """
        try:
            tf.keras.optimizers.SGD(0.1, decay=0.1)
        except ValueError as error:
            assert "legacy" in str(error)
        else:
            raise AssertionError("decay was ignored")
        assert tf.keras.optimizers.legacy.SGD(0.1, decay=0.1).get_config()["decay"] == 0.1
    """,
}


@functools.cache
def with_keras_2() -> dict[str, str]:
    """The error of each program, by idiom."""
    lines = ["import json, sys, textwrap, traceback", "import tensorflow as tf, horovod.keras"]
    for name, text in KERAS_2.items():
        lines += [
            "try:",
            f"    exec(textwrap.dedent({text!r}), dict(globals())); error = ''",
            "except Exception:",
            "    error = traceback.format_exc()",
            f"print('IDIOM', json.dumps([{name!r}, error]))",
        ]
    folder = Path(tempfile.mkdtemp())
    script = tools.write_script(folder, "\n".join(lines))
    done = tools.run_python("-m", "tfring.horovod", script, TF_USE_LEGACY_KERAS="1")
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in re.findall(r"^IDIOM (.*)$", done.stdout, re.M))


@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras")
@pytest.mark.parametrize("name", KERAS_2)
def test_keras_2(name: str) -> None:
    assert not with_keras_2()[name]
