"""The screen after a failed job: one verdict, and nothing twice."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from launcher_tools import (
    AS_ROOT,
    LIMIT_SECONDS,
    REPORT,
    open_mpi_command,
    pids_in,
    run,
    start,
    start_command,
    write_script,
)

from tfring.runtime.texts.errors import HEADER

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import os, sys
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    def fail():
        if hvd.rank() == 1:
            if how == "raise":
                raise KeyError("image_id")
            if how == "exit":
                sys.exit(3)
            if how == "kill":
                os.kill(os.getpid(), 9)

    how = sys.argv[2]
    if how == "before":
        {}["before init"]
    hvd.init()
    for step in range(1 << 30):
        core.allreduce(np.ones(1000, np.float32), name="step", op=1)
        if step == 5:
            report(f"pid.{hvd.rank()}", os.getpid())
            fail()
"""
TOLD = {
    "raise": r"tfring: Rank 1 failed in script\.py:\d+ \(fail\): KeyError: 'image_id'\.",
    "before": r"tfring: All 2 ranks failed in script\.py:\d+: KeyError: 'before init'\.",
    "exit": r"tfring: Rank 1 called sys\.exit\(3\) in script\.py:\d+ \(fail\), while rank 0 .*",
    "kill": r"tfring: Rank 1 was killed by SIGKILL from outside the job.*",
}


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("how", list(TOLD))
def test_the_verdict_is_the_first_line_and_nothing_is_said_twice(tmp_path: Path, how: str) -> None:
    path = write_script(tmp_path, SCRIPT, "script.py", header=REPORT)
    done = run("-np", 2, sys.executable, path, tmp_path, how)
    assert done.returncode == {"exit": 3, "kill": 137}.get(how, 1)
    begin, told, *rest = lines_of(done.stderr)
    assert begin.startswith("tfring") and re.fullmatch(TOLD[how], told), done.stderr
    assert len(rest) <= 9, done.stderr
    said = [line for line in rest if line.strip() != "^"]
    assert len(set(said)) == len(said) and "Error: " not in "\n".join(rest), done.stderr
    assert ("Rank 0 was stopped." in done.stderr) == (how != "before")
    assert ("The traceback of rank" in done.stderr) == (how in ("raise", "before"))


def test_full_tracebacks_come_as_the_ranks_write_them(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, "script.py", header=REPORT)
    done = run("-np", 2, sys.executable, path, tmp_path, "raise", TFRING_TRACEBACK="full")
    assert "KeyError: 'image_id'\n" in done.stderr and HEADER in done.stderr
    assert re.search("^" + TOLD["raise"] + "$", done.stderr, re.MULTILINE), done.stderr
    assert "The traceback of rank" not in done.stderr


def test_ctrl_c_shows_no_tracebacks(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, "script.py", header=REPORT)
    job = start("-np", 2, sys.executable, path, tmp_path, "never")
    pids_in(tmp_path, 2)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 130
    assert len(lines_of(err)) <= 3 and "stopped by SIGINT" in err, err


SAVES = """
    import os, signal, sys, time, traceback
    report(f"pid.{os.environ['TFRING_X_RANK']}", os.getpid())
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        traceback.print_exc()
        time.sleep(1.5)
        print("saving", flush=True)
        time.sleep(600)
"""


def test_who_saves_after_ctrl_c_is_seen(tmp_path: Path) -> None:
    path = write_script(tmp_path, SAVES, "script.py", header=REPORT)
    job = start("-np", 1, sys.executable, path, tmp_path)
    pids_in(tmp_path, 1)
    job.send_signal(signal.SIGINT)
    assert job.stdout is not None
    assert job.stdout.readline().endswith("saving\n")
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert "KeyboardInterrupt\n" in err and HEADER in err, err


CANNOT_SAVE = """
    import os, signal, sys, time

    def save(*_):
        raise OSError("the disk is full")

    signal.signal(signal.SIGTERM, save)
    report(f"pid.{os.environ['TFRING_X_RANK']}", os.getpid())
    time.sleep(600)
"""


def test_an_error_after_a_signal_is_shown_once(tmp_path: Path) -> None:
    job = start(
        "-np", 2, sys.executable, write_script(tmp_path, CANNOT_SAVE, header=REPORT), tmp_path
    )
    pids_in(tmp_path, 2)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert err.count("OSError: the disk is full") == 1 and "in save" in err, err
    assert "stopped by SIGTERM" in err and HEADER not in err, err


LOGGED = """
    import logging, sys, time
    try:
        {}["handled"]
    except KeyError:
        logging.exception("this is handled")
    print("end", file=sys.stderr)
"""


def test_a_traceback_that_is_only_logged_is_shown_as_it_is(tmp_path: Path) -> None:
    done = run("-np", 2, sys.executable, write_script(tmp_path, LOGGED))
    assert done.returncode == 0
    for line in (HEADER, "KeyError: 'handled'", "end"):
        assert f"{line}\n" in done.stderr, done.stderr


OTHERS = """
    import logging, os, time
    rank = int(os.environ["TFRING_X_RANK"])
    if rank == 1:
        try:
            {}["batch"]
        except KeyError:
            logging.exception("a bad batch")
        open(f"{where}/logged", "w").close()
        time.sleep(600)
    while not os.path.exists(f"{where}/logged"):
        time.sleep(0.01)
    time.sleep(0.3)
    try:
        {}["own"]
    except KeyError:
        logging.exception("handled")
    os.kill(os.getpid(), 9)
"""


def test_what_ranks_have_logged_is_shown_when_another_end_comes(tmp_path: Path) -> None:
    path = write_script(tmp_path, f"    where = {str(tmp_path)!r}\n{OTHERS}")
    done = run("-np", 2, sys.executable, path)
    assert "killed by SIGKILL" in done.stderr and "The traceback of" not in done.stderr, done.stderr
    assert all(f"KeyError: '{one}'\n" in done.stderr for one in ("batch", "own")), done.stderr


def test_under_mpirun_each_rank_says_what_has_happened_to_it(tmp_path: Path) -> None:
    launcher = [*open_mpi_command(major="5"), "--continuous"]  # which lets rank 0 live
    path = write_script(tmp_path, SCRIPT, "script.py", header=REPORT)
    words = ["-np", "2", sys.executable, str(path), str(tmp_path), "raise"]
    job = start_command([*launcher, *words], **AS_ROOT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert re.search("^" + TOLD["raise"] + "$", err, re.MULTILINE), err
    assert re.search(
        r"^tfring: Rank 0 was stopped in script\.py:\d+: .*rank 1 \(host ", err, re.MULTILINE
    ), err
    assert "Traceback" not in err, err
    assert os.path.exists(tmp_path / "pid.1")
