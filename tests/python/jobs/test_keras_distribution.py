"""Programs for keras.distribution as whole jobs: that of the docs, and ranks without a launcher."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import launcher_tools as tools
import pytest

PAGE = tools.ROOT / "docs" / "keras_distribution.md"
HASH = """
import hashlib
weights = b"".join(w.tobytes() for w in model.get_weights())
print("WEIGHTS", hashlib.sha256(weights).hexdigest(), flush=True)
"""


def program(folder):
    (text,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return tools.write_script(folder, text + HASH)


@pytest.mark.slow
def test_the_program_of_the_docs(tmp_path):
    done = tools.run("-np", 2, sys.executable, program(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    hashes = re.findall(r"WEIGHTS (\w+)", done.stdout)
    assert len(hashes) == 2
    assert len(set(hashes)) == 1


@pytest.mark.slow
def test_ranks_that_are_started_by_hand(tmp_path):
    """keras.distribution's own variables say who they are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = program(tmp_path)
    ranks = [
        subprocess.Popen(
            [sys.executable, script],
            env=tools.environment(
                KERAS_DISTRIBUTION_JOB_ADDRESSES=f"127.0.0.1:{port},127.0.0.1",
                KERAS_DISTRIBUTION_NUM_PROCESSES="2",
                KERAS_DISTRIBUTION_PROCESS_ID=str(rank),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=tools.LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    hashes = [re.findall(r"WEIGHTS (\w+)", text) for text in printed]
    assert hashes[0] == hashes[1] != []


@pytest.mark.slow
def test_one_process_and_no_initialize(tmp_path):
    """A process alone makes a job of one rank; without initialize() `fit` says what is missing."""
    script = program(tmp_path)
    alone = run_alone(script)
    assert alone.returncode == 0, alone.stderr[-4000:]
    text = Path(script).read_text("utf-8").replace("keras.distribution.initialize()\n", "")
    refused = run_alone(tools.write_script(tmp_path, text, "without.py"))
    assert refused.returncode == 1
    assert "this process is in no job: call keras.distribution.initialize()" in refused.stderr


def run_alone(script):
    return subprocess.run(
        [sys.executable, script],
        env=tools.environment(),
        capture_output=True,
        text=True,
        timeout=tools.LIMIT_SECONDS,
    )
