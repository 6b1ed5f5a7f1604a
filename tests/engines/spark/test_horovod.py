"""Unmodified programs for Horovod on Spark: `import horovod.spark` means tfring.spark."""

import re
import subprocess
import sys

import launcher_tools as tools
import pytest
import spark_cluster

SCRIPTS = tools.ROOT / "tests" / "horovod_scripts"
SECONDS = 400


def _run(name, folder, *arguments):
    command = [sys.executable, "-m", "tfring.horovod", SCRIPTS / name, *map(str, arguments)]
    environment = tools.environment(**spark_cluster.variables(folder))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_run(tmp_path):
    output = _run("spark_run.py", tmp_path)
    results = re.findall(r"RESULT (\d) ([0-9.]+)", output)
    assert [rank for rank, _ in results] == ["0", "1"], output
    assert results[0][1] == results[1][1] and float(results[0][1]) > 0.8, results


def test_estimator(tmp_path):
    pytest.importorskip("tensorboard", reason="the program's callback needs it: extra spark-tests")
    (tmp_path / "work").mkdir()
    output = _run("spark_estimator.py", tmp_path, "--work-dir", tmp_path / "work")
    (accuracy,) = re.findall(r"Test accuracy: ([0-9.]+)", output)
    assert float(accuracy) > 0.8, output
    assert re.search(r"\b0\| .*val_accuracy", output), output
