"""Output that is not read, full disks, files that become too long, ranks left out."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import threading

import pytest
from launcher_tools import (
    REPORT,
    alive,
    environment,
    finish,
    pids_in,
    run,
    run_command,
    wait_until,
)
from launcher_tools import write_script as write

from tfring.launch.output.files import RankFiles
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.launch.output.writer import BackgroundWriter, Descriptor, QueuedFile


class Gate:
    """A target that accepts nothing until it is opened."""

    def __init__(self):
        self.open = threading.Event()
        self.entered = threading.Event()
        self.data = b""

    def write(self, data):
        self.entered.set()
        self.open.wait()
        self.data += data


def test_streams_that_were_closed_before_the_start_take_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with Terminal() as terminal:
        assert terminal.stdout.write(b"to nobody") == 9
        assert terminal.stderr is not None


def test_a_stream_of_a_notebook_gets_whole_characters(monkeypatch):
    """It takes text only; what is written may end within a character."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    with Terminal() as terminal:
        text = "grün ✓\n".encode()
        for byte in text:
            assert terminal.stdout.write(bytes([byte])) == 1
        terminal.stdout.write(b"\xff no text\n")
    assert shown.getvalue() == "grün ✓\n\ufffd no text\n"


def test_a_stuck_target_blocks_nobody_and_says_what_is_missing():
    gate, writer = Gate(), BackgroundWriter(most_waiting=100)
    file = QueuedFile(writer, gate, "the output")

    def put(text):
        file.write(text)
        file.flush()

    put(b"first\n")
    assert gate.entered.wait(30)
    for number in range(50):
        put(b"line %02d\n" % number)  # 8 bytes each: 11 of them fit
    assert not writer.close(patience=0.05)
    gate.open.set()
    assert wait_until(lambda: gate.data.endswith(b"line 10\n"))
    put(b"last\n")
    assert writer.close()
    kept = b"".join(b"line %02d\n" % number for number in range(11))
    note = b"tfring run: 39 lines of the output left out: it was written too slowly\n"
    assert gate.data == b"first\n" + kept + note + b"last\n"
    assert file.left_out() == ""


def test_output_that_a_full_disk_has_lost_is_told_on_the_error_output(tmp_path):
    with open("/dev/full", "w") as full, open(tmp_path / "err", "w+") as err:
        with Terminal(full, err) as terminal:
            terminal.stdout.write(b"one\ntwo\n")
        assert (tmp_path / "err").read_text() == (
            "tfring run: 2 lines of the output left out: No space left on device\n"
        )


class Disk:
    """A disk that is full now and then; it writes a part before the error."""

    def __init__(self, space):
        self.space = space
        self.data = b""

    def write(self, data):
        taken = data[: self.space]
        self.data += taken
        self.space -= len(taken)
        if len(taken) < len(data):
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            error.written = len(taken)  # type: ignore[attr-defined]
            raise error


def test_a_full_disk_that_has_space_again():
    disk = Disk(space=20)
    file = QueuedFile(BackgroundWriter(), disk, "FILE")
    file.write_now(b"0123456789\n")
    file.write_now(b"a\nb\nc\nd\ne\nf\n")  # 9 bytes fit
    file.write_now(b"still full\n")
    assert disk.data == b"0123456789\na\nb\nc\nd\ne"
    disk.space = 1000
    file.write_now(b"again\n")
    assert b"tfring run: 3 lines of FILE left out: No space left on device\nagain\n" in disk.data
    assert file.left_out() == ""


def test_a_reader_that_has_gone_is_told_to_who_writes():
    read, write_end = os.pipe()
    os.close(read)
    writer = BackgroundWriter()
    file = QueuedFile(writer, Descriptor(write_end), "the output")
    file.write(b"x\n")
    file.flush()
    assert writer.close()
    with pytest.raises(BrokenPipeError):
        file.write(b"y\n")
    os.close(write_end)


def test_a_pipe_that_somebody_has_made_non_blocking_loses_nothing():
    read, write_end = os.pipe()
    os.set_blocking(write_end, False)
    writer = BackgroundWriter()
    file = QueuedFile(writer, Descriptor(write_end), "the output")
    data = b"0123456789\n" * 50000  # more than a pipe holds
    file.write(data)
    file.flush()
    got = b""
    while len(got) < len(data):
        got += os.read(read, 1 << 16)
    assert got == data and writer.close() and file.left_out() == ""
    os.close(read)
    os.close(write_end)


def test_files_of_ranks_have_folders_in_order(tmp_path):
    writer = BackgroundWriter()
    files = RankFiles(writer, tmp_path, 12)
    for rank in (3, 11):
        files.add(rank)
        files.write(rank, "stderr", b"%d\n" % rank)
    assert writer.close()
    files.close()
    assert (tmp_path / "rank.03" / "stderr").read_text() == "3\n"
    assert (tmp_path / "rank.11" / "stderr").read_text() == "11\n"


def test_ranks_that_are_left_out_are_not_waited_for():
    out = io.BytesIO()
    merger = OutputMerger(out, out, ranks={0, 2})
    streams = [merger.add(rank, "stdout") for rank in range(3)]
    for stream in streams:
        merger.feed(stream, b"same\n", 0.0)
    # Both ranks that are shown have written it: it is there although rank 1 is not waited for.
    assert out.getvalue() == b"0,2| same\n"
    for stream in streams:
        merger.finish(stream)


def test_printed_ranks_and_files_of_all(tmp_path):
    path = write(tmp_path, "import os\nprint('rank', os.environ['TFRING_X_RANK'])\n")
    folder = tmp_path / "out"
    done = run("-np", 3, "--print-ranks", "0,2", "--output-filename", folder, sys.executable, path)
    assert sorted(done.stdout.splitlines()) == ["0| rank 0", "2| rank 2"]
    assert [(folder / f"rank.{r}" / "stdout").read_text() for r in range(3)] == [
        f"rank {r}\n" for r in range(3)
    ]
    done = run("-np", 1, "--print-ranks", "x", "true")
    assert done.returncode == 2 and "--print-ranks: x: it has to be ranks" in done.stderr


FULL = "needs /dev/full"


def test_files_that_cannot_grow_do_not_end_the_job(tmp_path):
    command = run_command("-np", 2, "--output-filename", tmp_path / "out", "sh", "-c", "echo a")
    done = finish(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command])
    assert done.returncode == 0, done.stderr
    assert "1 line of" in done.stderr and "File too large" in done.stderr
    assert done.stdout.count("| a") == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason=FULL)
def test_output_to_a_full_disk_does_not_end_the_job(tmp_path):
    with open("/dev/full", "wb") as full:
        command = run_command(
            "-np", 1, "sh", "-c", f"echo a; sleep 1; echo b; touch {tmp_path}/end"
        )
        done = subprocess.run(command, stdout=full, env=environment(), timeout=120, check=False)
    assert done.returncode == 0 and (tmp_path / "end").exists()


def test_files_that_cannot_be_made_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    for option in ("--output-filename", "--events", "--exit-report"):
        done = run("-np", 1, option, tmp_path / "file" / "below", "true")
        assert done.returncode == 2 and f"tfring run: {option}:" in done.stderr


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_ranks(tmp_path):
    path = write(
        tmp_path,
        """
        for number in range(2200):
            print(number, "x" * 10000)
        report("pid.0", os.getpid())
        """,
        header=REPORT,
    )
    job = subprocess.Popen(
        run_command("-np", 1, sys.executable, path, tmp_path),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    # The rank writes all 22 MB although no process reads them.
    pid = pids_in(tmp_path, 1)["0"]
    assert wait_until(lambda: not alive(pid), 60)
    assert job.stdout is not None
    text = job.stdout.read()
    assert job.wait(60) == 0
    assert text.startswith(b"0| 0 xxx")
    assert len(text) < 20 << 20
    assert b"lines of the output left out: it was written too slowly\n" in text
