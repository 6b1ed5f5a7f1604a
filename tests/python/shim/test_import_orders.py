"""Keras 2 idioms under the shim, however a program imports Keras and horovod."""

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

from tfring.horovod import shim

# Python has the modules of `tf.keras` a second time, as `tensorflow.keras`.
KERAS_3 = {
    "from tensorflow.keras.losses": """
        import horovod.tensorflow.keras
        from tensorflow.keras.losses import mean_squared_error
    """,
    "tf.keras after tensorflow.keras.losses": """
        import horovod.tensorflow.keras
        from tensorflow.keras.losses import MSE
        import tensorflow as tf
        tf.keras.losses.mean_squared_error, tf.keras.metrics.mean_squared_error
    """,
    "from tensorflow.keras.optimizers.legacy": """
        import horovod.tensorflow.keras
        from tensorflow.keras.optimizers.legacy import Adam
        assert Adam(lr=0.5).learning_rate.numpy() == 0.5
    """,
    "tensorflow.keras.backend": """
        import horovod.tensorflow.keras
        import tensorflow.keras.backend as K
        from tensorflow.keras.optimizers import SGD
        opt = SGD(0.5)
        K.set_value(opt.lr, 0.25)
        assert K.get_value(opt.lr) == 0.25
    """,
    "tensorflow.keras before horovod": """
        import tensorflow.keras.backend as K, tensorflow.keras.metrics as metrics
        from tensorflow.keras.losses import MSE
        from tensorflow.keras.optimizers import SGD, legacy
        import horovod.tensorflow.keras
        from tensorflow.keras.losses import mean_squared_error
        from keras.preprocessing.image import ImageDataGenerator
        opt = legacy.SGD(lr=0.5)
        K.set_value(opt.lr, 0.25)
        assert metrics.mean_squared_error and opt.learning_rate.numpy() == 0.25
    """,
    "keras as modules": """
        import horovod.keras
        from keras.losses import mean_squared_error
        from keras.metrics import mean_absolute_error
        from keras.optimizers.legacy import Adam
        import keras.backend as K
        K.set_value(Adam(lr=0.5).lr, 0.25)
    """,
    "a Keras that has another form": """
        import keras, warnings
        del keras.optimizers.legacy
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import horovod.tensorflow.keras
        (said,) = [str(w.message) for w in caught if "shim does not support" in str(w.message)]
        assert f"support Keras {keras.__version__} (" in said and "'legacy'" in said, said
        assert "Install a Keras version that" in said, said
    """,
}
KERAS_2 = {
    "tf_keras without the variable": """
        import horovod.keras
        import tf_keras as keras
        assert keras.optimizers.SGD(lr=0.5).learning_rate.numpy() == 0.5
    """,
    "tf_keras before horovod": """
        import tf_keras as keras
        import horovod.keras
        assert keras.optimizers.SGD(lr=0.5).learning_rate.numpy() == 0.5
    """,
    "the variable after horovod": """
        import horovod.tensorflow.keras
        import os
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow as tf
        assert tf.keras.Model.__module__.startswith("tf_keras")
        assert tf.keras.optimizers.SGD(lr=0.5).learning_rate.numpy() == 0.5
    """,
    "a tf_keras that has another form": """
        import tf_keras, warnings
        for cls in tf_keras.optimizers.Optimizer.__mro__:
            if "_process_kwargs" in vars(cls):
                del cls._process_kwargs
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import horovod.tensorflow.keras
        (said,) = [str(w.message) for w in caught if "shim does not support" in str(w.message)]
        assert "_process_kwargs" in said and "learning_rate=" in said, said
    """,
}
# TensorFlow is loaded once; each program has a process of its own in which no Keras is used yet.
RUN = """
    import json, os, sys, textwrap, traceback
    import tensorflow

    for name, text in json.load(open(sys.argv[1])).items():
        if os.fork() == 0:
            try:
                exec(compile(textwrap.dedent(text), name, "exec"), {})
                error = ""
            except BaseException:
                error = traceback.format_exc()
            print("PROGRAM", json.dumps([name, error]), flush=True)
            os._exit(0)
        os.wait()
"""


@functools.cache
def errors() -> dict[str, str]:
    """The error of each program, by its name."""
    programs = KERAS_3 | (KERAS_2 if importlib.util.find_spec("tf_keras") else {})
    folder = Path(tempfile.mkdtemp())
    (folder / "programs").write_text(json.dumps(programs))
    header = f"import sys; sys.path.insert(0, {str(shim.SHIM_FOLDER)!r})\n"
    script = tools.write_script(folder, RUN, header=header)
    done = tools.run_python(script, str(folder / "programs"))
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in re.findall(r"^PROGRAM (.*)$", done.stdout, re.M))


@pytest.mark.parametrize("name", KERAS_3)
def test_order(name: str) -> None:
    assert not errors()[name], errors()[name]


@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras")
@pytest.mark.parametrize("name", KERAS_2)
def test_order_with_keras_2(name: str) -> None:
    assert not errors()[name], errors()[name]


@pytest.mark.parametrize("by_name", [False, True])
def test_keras_above_horovod(
    by_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m tfring.horovod` has the idioms before the program's first line."""
    monkeypatch.chdir(tmp_path)
    text = "from keras.preprocessing.image import ImageDataGenerator\nimport horovod.keras"
    script = tools.write_script(tmp_path, text, "order.py")
    done = tools.run_python("-m", "tfring.horovod", *(["-m", "order"] if by_name else [script]))
    assert done.returncode == 0, done.stderr
