"""`tfring top` and `tfring stacks` on a job that runs, in a terminal and for scripts."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_tools import fake_ssh, finish, run_python, wait_until
from live_jobs import LiveJob, Terminal, live_job

from tfring.observe.recorder.places import id_of, short
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import read_record

native = pytest.importorskip("tfring.runtime._native")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    with live_job(tmp_path_factory.mktemp("job")) as running:
        yield running


def test_an_object_for_scripts(job: LiveJob) -> None:
    done = job.tfring("top", "--once", "--json", "--interval", "1")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    view = json.loads(line)
    assert view["job"] == id_of(job.records.name) and view["size"] == 2 and view["missing"] == []
    for rank, seen in enumerate(view["ranks"]):
        row, record = seen["row"], seen["row"]["record"]
        assert (seen["rank"], record["pid"], seen["doing"]) == (rank, job.pids[rank], "running")
        # A step may begin while the record is read.
        assert seen["steps"] > 0 and record["samples"] - 32 * row["step"] in (0, 32)
        assert seen["samples"] == pytest.approx(32 * seen["steps"], abs=65)
        assert 1e6 < row["memory"] < 1e11 and 0 <= seen["awaited"] <= 1


def test_impossible_times_are_refused(job: LiveJob) -> None:
    for option in (("top", "--interval"), ("stacks", "--timeout")):
        done = job.tfring(*option, "inf")
        assert done.returncode == 2 and f"{option[1]} inf: use " in done.stderr


def test_objects_until_the_reader_is_gone(job: LiveJob) -> None:
    command = [sys.executable, "-m", "tfring", "top", str(job.records), "--json", "-n", "0.05"]
    done = finish(["bash", "-c", '"$@" | head -n 3; exit ${PIPESTATUS[0]}', "bash", *command])
    assert len(done.stdout.splitlines()) == 3 and done.returncode == 141 and not done.stderr


def test_the_view_in_a_terminal(job: LiveJob, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfring", "top", str(job.records), "-n", "0.2"]
    terminal = Terminal(command, tmp_path)
    name = id_of(job.records.name)
    try:
        terminal.wait_for(f"job {short(name)}", "2 ranks on 1 host", "samples/s", "q quit")
        row = re.compile(r"^ +(\d)(?: +[a-z]\S*)? +- +\d+ ", re.MULTILINE)
        terminal.wait_until(lambda: row.findall(terminal.text()) == ["0", "1"])
        before = read_record(job.records / "rank-0.record").header["step"]

        def goes_on() -> bool:
            found = re.search(r"^ +0(?: +[a-z]\S*)? +- +(\d+) ", terminal.text(), re.MULTILINE)
            return found is not None and int(found.group(1)) > before

        terminal.wait_until(goes_on)

        terminal.press("s")
        terminal.wait_for("main thread, innermost call first", "script.py", "q back")
        terminal.press("q")
        terminal.wait_for("q quit")
        terminal.press("?")
        terminal.wait_for("Keys", "share of the time that it waits for data", "q back")
        terminal.press("q")
        terminal.press("h")
        terminal.wait_for(" 0-1 ")
        terminal.press("h<")
        terminal.wait_for("state*")
        terminal.press("d")
        terminal.wait_for(f"kept in tfring-{name}.tgz")
        with tarfile.open(tmp_path / f"tfring-{name}.tgz") as kept:
            assert f"tfring-{name}/rank-1.record" in kept.getnames()

        os.kill(job.pids[1], signal.SIGSTOP)
        terminal.wait_for("stopped")
        os.kill(job.pids[1], signal.SIGCONT)
        terminal.wait_until(lambda: "stopped" not in terminal.text())

        assert terminal.modes_now() != terminal.modes
        terminal.press("q")
        terminal.wait_until(lambda: terminal.process.poll() is not None)
    finally:
        os.kill(job.pids[1], signal.SIGCONT)
        terminal.close()
    assert terminal.process.returncode == 0
    assert terminal.modes_at_end == terminal.modes
    # The page was on the alternate screen, and the cursor is shown again.
    assert terminal.output.rindex(b"\x1b[?1049l") > terminal.output.rindex(b"\x1b[?1049h")
    assert terminal.output.rindex(b"\x1b[?25h") > terminal.output.rindex(b"\x1b[?25l")


def test_a_signal_leaves_the_terminal_as_it_was(job: LiveJob, tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "tfring", "top", str(job.records)], tmp_path)
    try:
        terminal.wait_for("q quit")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.wait_until(lambda: terminal.process.poll() is not None)
    finally:
        terminal.close()
    assert terminal.process.returncode == 128 + signal.SIGTERM
    assert terminal.modes_at_end == terminal.modes
    assert terminal.output.rindex(b"\x1b[?1049l") > terminal.output.rindex(b"\x1b[?1049h")


def test_a_stopped_rank_is_named(job: LiveJob) -> None:
    os.kill(job.pids[1], signal.SIGSTOP)
    try:
        header = read_record(job.records / "rank-1.record").header
        assert wait_until(lambda: process_state(header) == "stopped")
        done = job.tfring("stacks")
        assert "stopped by a signal or a debugger" in done.stdout, done.stdout
        assert f"kill -CONT {job.pids[1]}" in done.stdout
        assert "innermost call first" in done.stdout.split("Rank 1:")[0]
        shown = job.tfring("top", "--once", "-n", "0.1").stdout
        assert shown.startswith("Rank 1 (host") and "has been stopped" in shown
        first, second = re.findall(r"^ +[01] .*$", shown, re.M)
        assert "stopped" in second and "stopped" not in first
    finally:
        os.kill(job.pids[1], signal.SIGCONT)


def test_other_hosts_through_ssh(job: LiveJob, tmp_path: Path) -> None:
    # Each host sees the record of one rank: the ssh replaces the folder's name.
    for name, rank in (("this-host", 0), ("that-host", 1)):
        (tmp_path / name).mkdir()
        record = job.records / f"rank-{rank}.record"
        for file in (record, record.with_suffix(".socket")):
            os.link(file, tmp_path / name / file.name)
    replaced = (
        'command="$*"; exec env -i PATH=/usr/bin:/bin HOME=/ bash -c "${command//this-/that-}"'
    )
    start = 'echo "Welcome to $0"\nprintf "%s\\n" "$*" >> "${0%/bin/ssh}/ssh.log"\n'
    skip = 'while [[ "$1" == -* ]]; do case "$1" in -o|-p|-i) shift;; esac; shift; done; shift\n'
    path = fake_ssh(tmp_path, start + skip + replaced + "\n")
    words = [sys.executable, "-m", "tfring"]
    here = str(tmp_path / "this-host")
    alone = json.loads(finish([*words, "top", here, "--once", "--json", "-n", "0.1"]).stdout)
    assert alone["missing"] == [1]
    options = ["--host", "other", "-p", "2222", "--once", "--json", "-n", "0.3"]
    done = finish([*words, "top", here, *options], PATH=path)
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert view["missing"] == [] and [row["rank"] for row in view["ranks"]] == [0, 1]
    assert "-p 2222 -- other env PYTHONPATH=" in (tmp_path / "ssh.log").read_text()
    done = finish([*words, "stacks", here, "--host", "other"], PATH=path)
    assert "Ranks 0 and 1:" in done.stdout or "Rank 1:" in done.stdout, done.stdout + done.stderr
    assert "no stacks" not in done.stdout and done.returncode == 0


def test_a_host_that_cannot_be_reached_is_named(job: LiveJob, tmp_path: Path) -> None:
    path = fake_ssh(tmp_path, "echo no route to it >&2; exit 255\n")
    done = job.tfring("stacks", "--host", "faraway", PATH=path)
    assert "host faraway: no route to it" in done.stderr and "main thread" in done.stdout
    done = finish(
        [sys.executable, "-m", "tfring", "top", "--host", "faraway", "--once", "nojob"], PATH=path
    )
    assert done.returncode == 2 and "host faraway: no route to it" in done.stderr


def test_missing_packages_are_named() -> None:
    code = "import sys; sys.modules['rich'] = None; from tfring.launch.cli import main; "
    code += "sys.exit(main(['top', '--once']))"
    done = run_python("-c", code)
    assert done.returncode == 2 and "pip install 'tfring[top]'" in done.stderr


def test_without_a_terminal_or_a_job_top_says_so(job: LiveJob, tmp_path: Path) -> None:
    done = job.tfring("top")
    assert done.returncode == 2 and "--once" in done.stderr
    done = finish([sys.executable, "-m", "tfring", "top", str(tmp_path), "--once"])
    assert done.returncode == 2 and "no record" in done.stderr
    assert job.process.poll() is None
