"""Unmodified programs for Horovod on Ray: `import horovod.ray` means tfring.ray."""

import ast
import re
import subprocess
import sys

import launcher_tools as tools
import pytest
from ray_state import wait_until_nothing_is_left

SCRIPTS = tools.ROOT / "tests" / "horovod_scripts"
SECONDS = 400

pytestmark = pytest.mark.usefixtures("cluster")


def _run(name, cluster):
    command = [sys.executable, "-m", "tfring.horovod", SCRIPTS / name, "--address", cluster.address]
    done = subprocess.run(
        command, env=tools.environment(), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_keras_fit(cluster):
    results = re.findall(r"RESULT (\d) ([0-9.]+)", _run("ray_fit.py", cluster))
    assert [rank for rank, _ in results] == ["0", "1"]
    assert results[0][1] == results[1][1] and float(results[0][1]) > 0.8, results
    wait_until_nothing_is_left()


def test_stateful_and_elastic(cluster):
    output = _run("ray_elastic.py", cluster)
    said = {
        word: ast.literal_eval(rest) for word, rest in re.findall(r"^([A-Z]+) (.*)$", output, re.M)
    }
    first, second = said["STATEFUL"]
    assert first == second and abs(first - 1.0) < 1.0
    assert said["ELASTIC"] == [(0, 3), (1, 3)]
    assert said["ONE"] == [(0, 3)]
    wait_until_nothing_is_left()
