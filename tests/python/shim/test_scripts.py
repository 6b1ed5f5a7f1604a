"""Unmodified Horovod scripts on tfring: `import horovod` means tfring where that was asked for.

Those for one generation of Keras run one after the other in one job of two ranks.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import launcher_tools as tools
import pytest

SCRIPTS = tools.ROOT / "tests" / "horovod_scripts"

# By script: its arguments, {} being a folder, and the limits of the numbers that it prints.
WRITTEN_FOR_KERAS_2: dict[str, tuple[list[str], dict[str, tuple[float, float]]]] = {
    "fit_mnist.py": (["{}"], {"accuracy": (0.8, 1.0), "saved": (4, 4)}),
    "tape_mnist.py": (["{}"], {"loss": (0.0, 1.6)}),
    "advanced_callbacks.py": (["{}"], {"accuracy": (0.8, 1.0), "rate": (0.1, 0.1)}),
    "synthetic_benchmark.py": (["--fp16-allreduce"], {"iterations": (3, 3)}),
}
RESUME = ["resume.py", "--checkpoint-format", "{}/checkpoint-{{epoch}}.h5", "--epochs"]
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
needs_tf_keras = pytest.mark.skipif(not HAS_TF_KERAS, reason="needs tf_keras")
GENERATIONS = ["keras", pytest.param("tf_keras", marks=[needs_tf_keras, pytest.mark.slow])]

# Runs scripts with their arguments as programs of their own, in this process.
ONE_AFTER_THE_OTHER = """
    import os, runpy, sys
    import tfring

    for name, (path, *arguments) in {commands!r}.items():
        print("SCRIPT", name, flush=True)
        sys.argv = [path, *arguments]
        sys.path[0] = os.path.dirname(path)
        runpy.run_path(path, run_name="__main__")
        tfring.shutdown()
"""

Results = dict[str, str]


def _of_scripts(output: str) -> Results:
    """What each script printed at its end, which has to be the same on both ranks."""
    of_ranks = []
    for rank in range(2):
        text = "\n".join(re.findall(rf"^{rank}\| (.*)$", output, re.MULTILINE))
        parts = re.findall(r"^SCRIPT (\S+)$(.*?)(?=^SCRIPT |\Z)", text, re.MULTILINE | re.DOTALL)
        found = {name: re.findall(r"^RESULT (.*)$", part, re.MULTILINE) for name, part in parts}
        assert all(len(results) == 1 for results in found.values()), output
        of_ranks.append({name: result for name, (result,) in found.items()})
    assert of_ranks[0] == of_ranks[1], output
    return of_ranks[0]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """Returns a function that runs all scripts with a generation of Keras, once."""
    done: dict[str, Results] = {}

    def run_all(keras: str) -> Results:
        if keras not in done:
            done[keras] = _run_all(keras, tmp_path_factory.mktemp(keras))
        return done[keras]

    return run_all


def _run_all(keras: str, folder: Path) -> Results:
    words = {name: [name, *arguments] for name, (arguments, _) in WRITTEN_FOR_KERAS_2.items()}
    words["resume.first"], words["resume.second"] = [*RESUME, "2"], [*RESUME, "4"]
    if keras == "keras":
        words["alltoall_embedding.py"] = ["alltoall_embedding.py"]
    words["legacy_session.py"] = ["legacy_session.py"]  # the last: no eager execution after it
    commands = {}
    for name, (script, *arguments) in words.items():
        own = folder / name
        own.mkdir()
        commands[name] = [str(SCRIPTS / script), *(a.format(own) for a in arguments)]
    # Both runs of one script use one folder.
    commands["resume.second"][2] = commands["resume.first"][2]
    program = tools.write_script(folder, ONE_AFTER_THE_OTHER.format(commands=commands))
    legacy = "1" if keras == "tf_keras" else "0"
    done = tools.run("-np", 2, "--horovod", sys.executable, program, TF_USE_LEGACY_KERAS=legacy)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = _of_scripts(done.stdout)
    assert list(found) == list(commands)
    return found


def _value(result: str, name: str) -> float:
    found = re.search(rf"{name}=(-?[0-9.]+)", result)
    assert found is not None, result
    return float(found.group(1))


@pytest.mark.parametrize("keras", GENERATIONS)
@pytest.mark.parametrize("script", WRITTEN_FOR_KERAS_2)
def test_script_runs_unmodified(script: str, keras: str, results: Callable[[str], Results]) -> None:
    _, limits = WRITTEN_FOR_KERAS_2[script]
    result = results(keras)[script]
    for name, (low, high) in limits.items():
        assert low <= _value(result, name) <= high, result
    assert result.endswith(f"keras={keras}")


@pytest.mark.slow
def test_script_under_mpirun(tmp_path: Path) -> None:
    """As Horovod's documentation starts scripts without its own launcher."""
    script = SCRIPTS / "tape_mnist.py"
    done = tools.mpirun(2, "-m", "tfring.horovod", str(script), str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = re.findall(r"RESULT (.*)$", done.stdout, re.MULTILINE)
    assert len(results) == 2 and results[0] == results[1], done.stdout
    assert 0.0 <= _value(results[0], "loss") <= 1.6


@pytest.mark.parametrize("keras", GENERATIONS)
def test_resumed_script(keras: str, results: Callable[[str], Results]) -> None:
    """The second run loads on rank 0 what the first has saved, and goes on after its epochs."""
    first, second = results(keras)["resume.first"], results(keras)["resume.second"]
    assert _value(first, "steps") == 12 and _value(second, "steps") == 24
    assert _value(second, "error") < _value(first, "error")


@pytest.mark.parametrize("keras", GENERATIONS)
def test_graph_and_session_script(keras: str, results: Callable[[str], Results]) -> None:
    """TF1: a wrapped tf.train.Optimizer, the hook, a monitored session."""
    slope = [float(w) for w in re.findall(r"-?[0-9.]+", results(keras)["legacy_session.py"])]
    assert abs(slope[0] - 2) < 0.3 and abs(slope[1] + 1) < 0.3, slope


def test_embedding_script(results: Callable[[str], Results]) -> None:
    assert _value(results("keras")["alltoall_embedding.py"], "rows") == 12


@pytest.mark.slow
def test_process_sets_script() -> None:
    """Every half has its own result."""
    done = tools.run("-np", 3, "--horovod", sys.executable, SCRIPTS / "process_sets.py")
    assert done.returncode == 0, done.stderr
    halves = sorted(re.findall(r"RESULT (.*)$", done.stdout, re.MULTILINE))
    twos = ["half=[2.0, 2.0] size=3"] * 2
    assert halves == ["half=[1.0, 1.0] size=3", *twos], halves


def test_scripts_do_not_know_tfring() -> None:
    for script in SCRIPTS.glob("*.py"):
        assert "tfring" not in script.read_text()
