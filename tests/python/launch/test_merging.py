"""Lines that several ranks write at the same time are printed once."""

import io
import random
import re
import sys

import pytest

from tests.helpers.launcher_tools import finish, write_script
from tfring.launch.output.merger import (
    MAX_HELD_LINES,
    MERGE_SECONDS,
    PARTIAL_SECONDS,
    TAKEOVER_SECONDS,
    OutputMerger,
)


def ranks_and_text(line):
    """The ranks in front of a printed line, as [0, 1, 2, 5] for "0-2,5", and what follows."""
    ranks, _, text = line.partition("| ")
    ranges = [part.split("-") for part in ranks.split(",")]
    return [rank for r in ranges for rank in range(int(r[0]), int(r[-1]) + 1)], text


class Job:
    """An OutputMerger with ranks, one terminal, and a clock that the test sets.

    Two ranks have written a line already, unless `fresh`.
    """

    def __init__(self, ranks=4, fresh=False, **options):
        self.out = io.BytesIO()
        self.merger = OutputMerger(self.out, self.out, **options)
        self.streams = [self.merger.add(rank, "stderr") for rank in range(ranks)]
        self.now = -100.0
        for rank in () if fresh else (0, 1):
            self.write(rank, "begins\n")
            self.wait(10.0)
        self.begun = self.out.tell()
        self.now = 0.0

    def write(self, rank, text):
        self.merger.feed(self.streams[rank], text.encode(), self.now)

    def wait(self, seconds):
        self.now += seconds
        self.merger.tick(self.now)

    def end(self):
        for stream in self.streams:
            self.merger.finish(stream)
        return self.text

    @property
    def text(self):
        return self.out.getvalue()[self.begun :].decode()


def test_output_of_the_only_rank_that_writes_is_as_it_was_written():
    job = Job(fresh=True)
    job.write(2, "Epoch 1\n1/2\r2/2 done\n")
    job.wait(MERGE_SECONDS)
    assert job.text == "Epoch 1\n1/2\r2/2 done\n"
    job.write(2, "prompt> ")
    job.wait(MERGE_SECONDS)
    job.write(3, "me too\n")
    job.wait(MERGE_SECONDS)
    job.write(2, "and I\n")
    assert job.end().endswith("done\nprompt> \n3| me too\n2| and I\n")


def test_a_worker_that_becomes_a_rank_is_still_the_only_one():
    job = Job(fresh=True)
    for stream in job.streams:
        job.merger.assign(stream, -1, "worker 1")
    job.write(0, "begins\n")
    for rank, stream in enumerate(job.streams):
        job.merger.assign(stream, rank)
    job.write(0, "trains\n")
    assert job.end() == "begins\ntrains\n"


def test_every_line_has_its_rank_where_lines_are_not_merged():
    job = Job(fresh=True, merge_lines=False)
    job.write(0, "same\n")
    job.write(1, "same\n")
    assert job.text == "0| same\n1| same\n"


def test_a_line_of_all_ranks_is_printed_once_and_at_once():
    job = Job()
    for rank in (2, 0, 3, 1):
        assert job.text == ""
        job.write(rank, "same\n")
    assert job.text == "0-3| same\n"


def test_a_line_of_some_ranks_waits_for_the_others():
    job = Job(7)
    for rank in (0, 1, 2, 3, 5):
        job.write(rank, "same\r\n")
    job.write(6, "other\n")
    assert job.merger.tick(0.01) == pytest.approx(MERGE_SECONDS)
    assert job.text == ""
    job.wait(MERGE_SECONDS)
    assert job.text == "0-3,5| same\r\n6| other\n"
    job.write(4, "same\n")  # too late
    assert job.end().endswith("6| other\n4| same\n")


def test_each_ranks_lines_stay_in_order():
    job = Job(3)
    job.write(0, "a\nb\na\nc\n")
    job.write(1, "b\na\na\n")
    job.write(2, "c\na\n")
    lines = job.end().splitlines()
    for rank, wanted in enumerate(["abac", "baa", "ca"]):
        seen = ""
        for line in lines:
            ranks, text = ranks_and_text(line)
            seen += text[0] if rank in ranks else ""
        assert seen == wanted
    assert len(lines) < 9 and "0-1| b" in lines


def test_progress_bars_and_prompts_do_not_wait_nor_what_is_before_them():
    job = Job(2)
    job.write(0, "name?\n> ")
    job.wait(PARTIAL_SECONDS)
    assert job.text == "0| name?\n0| > "
    job.write(0, "\nEpoch 1\n1/2\r2/2\r")
    assert job.text.endswith("0| Epoch 1\n0| 1/2\r")  # a line feed may follow
    job.write(0, "done\n")
    assert job.text.endswith("1/2\r0| 2/2\r0| done\n")


def test_notes_come_after_what_waits():
    job = Job(2)
    job.write(0, "last words\n")
    job.merger.note("tfring run: note")
    assert job.text == "0| last words\ntfring run: note\n"


LOGGED = {
    "tfring": (
        "[tfring] 12:03:11.40{0}Z rank {0} (host h{0}) warning: rank 7 is late",
        "[tfring] 12:03:11.400Z warning: rank 7 is late",
    ),
    "without time": (
        "[tfring] rank {0} (host h) error: x",
        "[tfring] error: x",
    ),
    "TensorFlow 2.17": (
        "2026-05-02 10:00:00.12345{0}: W tensorflow/core/framework/op_kernel.cc:1]  failed",
        "2026-05-02 10:00:00.123450: W tensorflow/core/framework/op_kernel.cc:1]  failed",
    ),
    "TensorFlow 2.21": (
        "E0000 00:00:179529374{0}.493645   2037{0} cuda_fft.cc:477] Unable to register",
        "E0000 00:00:1795293740.493645   20370 cuda_fft.cc:477] Unable to register",
    ),
}


@pytest.mark.parametrize("name", LOGGED)
def test_times_and_names_of_log_lines_do_not_count(name):
    line, shown = LOGGED[name]
    job = Job(2)
    for rank in (0, 1):
        job.write(rank, line.format(rank) + "\n")
    assert job.text == f"0-1| {shown}\n"


def test_other_numbers_count():
    job = Job(2)
    for rank in (0, 1):
        job.write(rank, f"at 2026-05-02 10:00:0{rank}\n")
    assert job.end() == "".join(f"{r}| at 2026-05-02 10:00:0{r}\n" for r in (0, 1))


def test_what_waits_is_bounded():
    job = Job(2)
    job.write(0, "".join(f"{number}\n" for number in range(5 * MAX_HELD_LINES)))
    assert len(job.text.splitlines()) == 4 * MAX_HELD_LINES
    assert len(job.end().splitlines()) == 5 * MAX_HELD_LINES


@pytest.mark.parametrize("pouring", [1, 8])
def test_ranks_that_pour_stay_in_order_and_hold_up_nothing(pouring):
    job = Job(9)
    for rank in range(pouring):
        job.write(rank, "first\n")
    numbers = range(4 * MAX_HELD_LINES // pouring)
    for number in numbers:
        for rank in range(pouring):
            job.write(rank, f"{rank} {number}\n")
    job.write(8, "at once\n")
    assert job.text.endswith("8| at once\n")
    lines = [ranks_and_text(line) for line in job.text.splitlines()]
    for rank in range(pouring):
        mine = [text for ranks, text in lines if rank in ranks]
        assert mine[0].startswith("first") and mine[1:] == [f"{rank} {n}" for n in numbers]
    job.wait(3 * MERGE_SECONDS)
    for rank in range(9):
        job.write(rank, "again\n")  # there is time to compare lines again
    assert job.text.endswith("0-8| again\n")


def test_no_part_of_lines_is_lost_however_they_come():
    """Random pieces of lines, bars and prompts; without the prefixes each rank's text is whole."""
    pieces = ["a\n", "same\n", "b\r\n", "\n", "prompt> ", "wörter", "x" * 5000 + "\n"]
    for seed in range(20):
        draw = random.Random(seed)
        job, written = Job(3), ["", "", ""]
        for _ in range(200):
            rank = draw.randrange(3)
            text = "".join(draw.choices(pieces, k=draw.randint(1, 30)))
            written[rank] += text
            data = text.encode()
            cut = draw.randrange(len(data) + 1)
            for part in (data[:cut], data[cut:]):
                job.merger.feed(job.streams[rank], part, job.now)
            job.wait(draw.choice([0.0, 0.001, 0.05, 0.3]))
        seen = ["", "", ""]
        for line in job.end().splitlines(keepends=True):
            ranks, text = ranks_and_text(line)
            for rank in ranks:
                seen[rank] += text
        # A line of another rank ends an unfinished one, and so does the end of a stream.
        assert [text.replace("\n", "") for text in seen] == [
            text.replace("\n", "") for text in written
        ]


# The output of two ranks, and the terminal. Rank 0 writes to stdout, rank 1 to stderr.
# A number: seconds that pass. END: the stream ends.
TICK, TAKEOVER, END = PARTIAL_SECONDS, TAKEOVER_SECONDS, object()
MERGED = {
    "complete lines": (
        [(0, b"one\ntw"), (1, b"bad\r\n"), (0, b"o\n")],
        "0| one\n1| bad\r\n0| two\n",
    ),
    "a progress bar that returns first": (
        [(0, b"\r0/2"), (0, TICK), (0, b"\r1/2"), (0, TICK), (0, b"\r2/2"), (0, TICK), (0, b"\n")],
        "0| 0/2\r0| 1/2\r0| 2/2\n",
    ),
    "a progress bar that returns last": (
        [(0, b"1/2\r2/2\r"), (0, b"done\n")],
        "0| 1/2\r0| 2/2\r0| done\n",
    ),
    "a line of another rank during a progress bar": (
        [(0, b"\r1/2"), (0, TICK), (1, b"warning\n"), (0, b"\r2/2\n")],
        "0| 1/2\n1| warning\n0| 2/2\n",
    ),
    "an unfinished line, which is continued without a second prefix": (
        [(0, b"Epoch 1: "), (0, TICK), (0, b"done\n")],
        "0| Epoch 1: done\n",
    ),
    "a second bar, which waits for the first one": (
        [(0, b"\ra"), (0, TICK), (1, b"\rb"), (0, TICK), (0, TAKEOVER)],
        "0| a\n1| b",
    ),
    "a character in two pieces": (
        [(0, b"x\xe2\x98"), (0, TICK), (0, b"\x83\n")],
        "0| x\u2603\n",
    ),
    "a last line without an end": (
        [(0, b"bye"), (0, END), (1, b"me too\n")],
        "0| bye\n1| me too\n",
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_output(name):
    events, text = MERGED[name]
    file = io.BytesIO()
    merger = OutputMerger(file, file, merge_lines=False)
    streams = [merger.add(0, "stdout"), merger.add(1, "stderr")]
    now = 0.0
    for rank, event in events:
        if isinstance(event, float):
            now += event
            merger.tick(now)
        elif event is END:
            merger.finish(streams[rank])
        else:
            merger.feed(streams[rank], event, now)
    assert file.getvalue().decode() == text


# As TensorFlow 2.21 and 2.17 print them; the last line of the first part begins without a level.
INFO_LINES = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795293746.558261   20330 port.cc:153] oneDNN custom operations are on. You may see ...
I0000 00:00:1795293746.612440   20330 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the ...
2026-05-02 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795293749.493645   20371 cuda_dnn.cc:8579] Unable to register cuDNN factory: \
Attempting to register factory for plugin cuDNN when one has already been registered
2026-05-02 10:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:479] Unable \
to register cuFFT factory: ... when one has already been registered
W0000 00:00:1795293749.493645   20371 computation_placer.cc:177] computation placer already \
registered.
2026-05-02 10:00:00.123456: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT \
Warning: Could not find TensorRT
"""
OTHER_LINES = b"""\
W0000 00:00:1795293749.493644   20371 local_rendezvous.cc:412] Local rendezvous is aborting
E0000 00:00:1795293749.493645   20371 cuda_dnn.cc:477] Could not create cudnn handle
2026-05-02 10:00:00.123456: W tensorflow/core/framework/op_kernel.cc:1]  OP_REQUIRES failed
WARNING:tensorflow:from Python
I1121 20:15:00.123456 139 train.py:40] what the program logs
INFO: the program's own
"""


@pytest.mark.parametrize("wanted", [False, True])
def test_what_tensorflow_always_logs_is_printed_if_asked_for(wanted):
    out, err = io.BytesIO(), io.BytesIO()
    merger = OutputMerger(out, err, tensorflow_info=wanted, merge_lines=False)
    streams = [merger.add(rank, name) for rank in (0, 1) for name in ("stdout", "stderr")]
    for stream in streams:
        merger.feed(stream, INFO_LINES + OTHER_LINES, 0.0)
        merger.finish(stream)

    def shown(rank, name):
        prefix = f"{rank}| ".encode()
        lines = (out if name == "stdout" else err).getvalue().splitlines(keepends=True)
        return b"".join(x.removeprefix(prefix) for x in lines if x.startswith(prefix))

    assert shown(0, "stdout") == shown(1, "stdout") == INFO_LINES + OTHER_LINES
    for rank in (0, 1):
        assert shown(rank, "stderr") == (INFO_LINES if wanted else b"") + OTHER_LINES


def test_a_job(tmp_path):
    script = write_script(
        tmp_path, "import os\nprint('hello')\nprint('I am', os.environ['TFRING_X_RANK'])\n"
    )
    command = [sys.executable, "-m", "tfring", "run", "-np", "3"]
    output = ["--output-filename", str(tmp_path / "out")]
    merged = finish([*command, *output, sys.executable, script])
    assert merged.returncode == 0, merged.stderr
    # The start times of the processes, and so the merged lines, depend on the machine.
    greeted = 0
    for line in merged.stdout.splitlines():
        if line.endswith("hello"):
            greeted += len(ranks_and_text(line)[0]) if "|" in line else 1
    assert greeted == 3
    for rank in range(3):
        assert re.search(rf"^({rank}\| )?I am {rank}$", merged.stdout, re.MULTILINE)
        file = tmp_path / "out" / f"rank.{rank}" / "stdout"
        assert file.read_text() == f"hello\nI am {rank}\n"
    apart = finish([*command, "--no-merge-lines", sys.executable, script])
    assert all(f"{rank}| hello\n" in apart.stdout for rank in range(3))
