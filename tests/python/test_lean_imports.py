"""tests/helpers/lean_imports hides packages from Keras only."""

from launcher_tools import run_python


def test_keras_does_without_packages_that_a_program_has():
    code = """if True:
        import sys
        import keras
        import tensorflow as tf

        assert tf.keras.layers is not None
        hidden = {"IPython", "matplotlib", "pandas", "scipy", "sklearn"}
        assert not hidden & set(sys.modules), hidden & set(sys.modules)
        from sklearn.datasets import load_digits

        assert len(load_digits().data) > 1000
    """
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
