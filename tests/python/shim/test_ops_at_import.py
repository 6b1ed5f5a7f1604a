"""What TF1 and SavedModel programs save with tfring's ops loads in a process that only imports.

As DeePMD-kit does it: `import horovod.tensorflow as hvd; hvd.init()`, then import_meta_graph.
"""

from __future__ import annotations

from pathlib import Path

import launcher_tools as tools
import pytest

SAVE = """
    import sys
    import tensorflow as tf
    import horovod.tensorflow as hvd

    hvd.init()
    folder = sys.argv[1]

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def f(self, x):
            return hvd.allreduce(x, op=hvd.Sum, name="x")

    tf.saved_model.save(Module(), f"{folder}/saved")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2], name="input")
        w = tf.compat.v1.get_variable("w", initializer=[3.0, 4.0])
        tf.identity(hvd.allreduce(x * w, op=hvd.Sum), name="output")
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, f"{folder}/model.ckpt")
"""
LOAD = """
    import sys
    {imports}

    folder = sys.argv[1]
    loaded = tf.saved_model.load(f"{{folder}}/saved")
    assert loaded.f(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(f"{{folder}}/model.ckpt.meta")
        saver.restore(session, f"{{folder}}/model.ckpt")
        assert session.run("output:0", {{"input:0": [1.0, 2.0]}}).tolist() == [3.0, 8.0]
    print("LOADED")
"""
# What the fresh process imports, by the name of the case.
IMPORTS = {
    "tensorflow": "import tensorflow as tf, horovod.tensorflow as hvd; hvd.init()",
    "mpi_ops": "import tensorflow as tf; from horovod.tensorflow.mpi_ops import init; init()",
    "tensorflow.keras": "import tensorflow as tf, horovod.tensorflow.keras as hvd; hvd.init()",
    "keras": "import tensorflow as tf, horovod.keras as hvd; hvd.init()",
    "before TensorFlow": "import horovod.tensorflow as hvd; hvd.init(); import tensorflow as tf",
    "tfring": "import tensorflow as tf, tfring; tfring.init()",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    done = tools.run_python("-m", "tfring.horovod", tools.write_script(folder, SAVE), str(folder))
    assert done.returncode == 0, done.stderr
    return folder


# The last test of this file sees, too, that init registers the ops where TensorFlow is loaded.
QUICK = "before TensorFlow"


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in IMPORTS],
)
def test_graphs_and_models_load_in_a_fresh_process(name: str, saved: Path, tmp_path: Path) -> None:
    script = tools.write_script(tmp_path, LOAD.format(imports=IMPORTS[name]))
    done = tools.run_python("-m", "tfring.horovod", script, str(saved))
    assert done.returncode == 0 and "LOADED" in done.stdout, done.stderr


def test_import_registers_the_ops_and_asks_for_no_devices(tmp_path: Path) -> None:
    """Programs set CUDA_VISIBLE_DEVICES after init, which has no effect once TensorFlow looked."""
    script = tools.write_script(
        tmp_path,
        """
        import tensorflow as tf
        from tensorflow.python.framework import op_def_registry

        looked = []
        tf.config.list_physical_devices = lambda *names: looked.append(names) or []
        import horovod.tensorflow as hvd
        assert op_def_registry.get("TfringAllreduce") is not None
        hvd.init()
        assert not looked, looked
        hvd.allreduce(tf.constant(1.0))
        assert looked
        """,
    )
    done = tools.run_python("-m", "tfring.horovod", script)
    assert done.returncode == 0, done.stderr


def test_a_library_that_is_missing_is_a_warning_and_then_an_error(tmp_path: Path) -> None:
    """Not each program that imports horovod, or calls init, uses collectives of TensorFlow."""
    from tfring.runtime import _native

    for file in _native.library_dir().glob("*"):
        if "_ops" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    done = tools.run_python(
        "-c",
        "import tensorflow as tf, tfring\ntfring.init(), tfring.shutdown(), tfring.init()\n"
        "print('INIT')\n"
        "try: tfring.allreduce(tf.constant(1.0))\n"
        "except (ImportError, tf.errors.NotFoundError) as e: print('ERROR', e)",
        TFRING_X_LIB_DIR=str(tmp_path),
    )
    assert "INIT" in done.stdout and "ERROR" in done.stdout, done.stderr
    assert done.stderr.count("tfring's ops are not registered with TensorFlow") == 1
    assert "Run `tfring doctor` to see which TensorFlow this tfring supports" in done.stderr
