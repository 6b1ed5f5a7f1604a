"""Unmodified Horovod scripts on tfring: `import horovod` means tfring where that was asked for."""

import importlib.util
import re
import sys

import launcher_tools as tools
import pytest

SCRIPTS = tools.ROOT / "tests" / "horovod_scripts"


# By script: its arguments, {} being a folder, and the limits of the numbers that it prints.
WRITTEN_FOR_KERAS_2 = {
    "fit_mnist.py": (["{}"], {"accuracy": (0.8, 1.0), "saved": (4, 4)}),
    "tape_mnist.py": (["{}"], {"loss": (0.0, 1.6)}),
    "advanced_callbacks.py": (["{}"], {"accuracy": (0.8, 1.0), "rate": (0.1, 0.1)}),
    "synthetic_benchmark.py": (["--fp16-allreduce"], {"iterations": (3, 3)}),
}
RESUME = ["resume.py", "--checkpoint-format", "{}/checkpoint-{{epoch}}.h5", "--epochs"]
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
needs_tf_keras = pytest.mark.skipif(not HAS_TF_KERAS, reason="needs tf_keras")
GENERATIONS = ["keras", pytest.param("tf_keras", marks=needs_tf_keras)]


def _results(output):
    """What each of the two ranks printed at its end, which has to be the same."""
    results = re.findall(r"RESULT (.*)$", output, re.MULTILINE)
    assert len(results) == 2 and results[0] == results[1], output
    return results[0]


def _run_script(name, *arguments, keras="keras"):
    """Runs a script on two ranks; returns what it printed at its end, and all its warnings."""
    legacy = "1" if keras == "tf_keras" else "0"
    command = [sys.executable, SCRIPTS / name, *arguments]
    done = tools.run("-np", 2, "--horovod", *command, TF_USE_LEGACY_KERAS=legacy)
    assert done.returncode == 0, done.stderr
    return _results(done.stdout), done.stderr


def _value(result, name):
    return float(re.search(rf"{name}=(-?[0-9.]+)", result).group(1))


@pytest.mark.parametrize("keras", GENERATIONS)
@pytest.mark.parametrize("script", WRITTEN_FOR_KERAS_2)
def test_script_runs_unmodified(script, keras, tmp_path):
    arguments, limits = WRITTEN_FOR_KERAS_2[script]
    result, _ = _run_script(script, *(a.format(tmp_path) for a in arguments), keras=keras)
    for name, (low, high) in limits.items():
        assert low <= _value(result, name) <= high, result
    assert result.endswith(f"keras={keras}")


def test_script_under_mpirun(tmp_path):
    """As Horovod's documentation starts scripts without its own launcher."""
    script = SCRIPTS / "tape_mnist.py"
    done = tools.mpirun(2, "-m", "tfring.compat", str(script), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert 0.0 <= _value(_results(done.stdout), "loss") <= 1.6


@pytest.mark.parametrize("keras", GENERATIONS)
def test_resumed_script(keras, tmp_path):
    """The second run loads on rank 0 what the first has saved, and goes on after its epochs."""
    arguments = [a.format(tmp_path) for a in RESUME]
    first, _ = _run_script(*arguments, "2", keras=keras)
    second, _ = _run_script(*arguments, "4", keras=keras)
    assert _value(first, "steps") == 12 and _value(second, "steps") == 24
    assert _value(second, "error") < _value(first, "error")


@pytest.mark.parametrize("keras", GENERATIONS)
def test_graph_and_session_script(keras):
    """TF1: a wrapped tf.train.Optimizer, the hook, a monitored session."""
    result, _ = _run_script("legacy_session.py", keras=keras)
    slope = [float(w) for w in re.findall(r"-?[0-9.]+", result)]
    assert abs(slope[0] - 2) < 0.3 and abs(slope[1] + 1) < 0.3, slope


def test_embedding_script():
    assert _value(_run_script("alltoall_embedding.py")[0], "rows") == 12


def test_process_sets_script():
    """Every half has its own result."""
    done = tools.run("-np", 3, "--horovod", sys.executable, SCRIPTS / "process_sets.py")
    assert done.returncode == 0, done.stderr
    halves = sorted(re.findall(r"RESULT (.*)$", done.stdout, re.MULTILINE))
    assert halves == ["half=[1.0, 1.0] size=3", *["half=[2.0, 2.0] size=3"] * 2], halves


def test_scripts_do_not_know_tfring():
    for script in SCRIPTS.glob("*.py"):
        assert "tfring" not in script.read_text()
