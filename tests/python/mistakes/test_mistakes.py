"""For each mistake of a first day, `tfring run` says what is wrong and what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_tools import environment
from mistakes import warm
from mistakes.table import MISTAKES, Mistake

LIMIT_SECONDS = 240
MOST_LINES = 6  # before the cause; later ones are a traceback, or the output of programs
# Of others: of Keras about the data of `shard`, and of TensorFlow.
OTHERS = re.compile(r"`shuffle=True` was passed|get_data_adapter\(|absl::InitializeLog|port\.cc:")
# Mistakes that other tests check.
ELSEWHERE = {
    "29": "launch/test_signals_and_reports.py::test_out_of_memory_is_told",
    "32": "launch/test_writing.py::test_output_to_a_full_disk_does_not_end_the_job",
    "33": "launch/test_failed_jobs.py::test_ctrl_c_shows_no_tracebacks",
    "37": "launch/test_notebooks.py::test_functions_of_cells",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The process that forks ranks; gives the variables by which relays find it."""
    address = tmp_path_factory.mktemp("warm") / "socket"
    with warm.warm_process(address):
        yield {warm.SOCKET: str(address), "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(each, id=each.number, marks=[pytest.mark.slow] * each.slow) for each in MISTAKES],
)
def test_a_mistake(mistake: Mistake, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if mistake.number == "18" and shutil.which("ssh") is None:
        pytest.skip("needs ssh")
    more = request.getfixturevalue("programs") if mistake.program else {}
    (tmp_path / "train.py").write_text(mistake.program or "print('hello')\n")
    program = [sys.executable, *(["-m", "mistakes.relay"] if mistake.program else []), "train.py"]
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tfring", "run", *mistake.options.split()),
            *(program if mistake.behind != "none" else []),
            *(mistake.behind.split() if mistake.behind != "none" else []),
        ],
        cwd=tmp_path,
        env=environment(**{**more, **mistake.environment}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        preexec_fn=lambda: _keep_cores(mistake.cores),
    )
    lines = [line for line in done.stdout.splitlines() if line.strip() and not OTHERS.search(line)]
    print(done.stdout)
    assert done.returncode == mistake.code
    if not mistake.what:  # its first and its last line
        assert [line.startswith("tfring") for line in lines] == [True, True]
        return
    at = [i for i, line in enumerate(lines) if mistake.what in line]
    assert at, mistake.what
    assert any(mistake.do in line for line in lines[at[0] : at[0] + 3]), mistake.do
    print(f"{at[0]} lines before the cause, {time.monotonic() - began:.1f} s")
    assert at[0] <= MOST_LINES
    assert len(at) == 1


def test_the_others_are_tested_elsewhere() -> None:
    numbers = {int(re.sub(r"\D", "", each.number)) for each in MISTAKES} | set(map(int, ELSEWHERE))
    assert numbers == set(range(1, 44))
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text(), place


def _keep_cores(count: int) -> None:
    if count:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
