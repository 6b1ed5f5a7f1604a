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


def test_blank_and_repeated_lines_are_merged_one_by_one():
    job = Job(2)
    for rank in (0, 1):
        job.write(rank, "x\n\nx\n")
    assert job.text == "0-1| x\n0-1| \n0-1| x\n"


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


class CountingFile(io.BytesIO):
    """A terminal that counts its writes."""

    writes = 0

    def write(self, data):
        self.writes += 1
        return super().write(data)


def test_many_lines_are_written_together():
    """A chunk is not handled line by line once there are more lines than can be compared."""
    job = Job(2)
    job.out = file = CountingFile()
    job.begun = 0
    job.merger = OutputMerger(file, file)
    job.streams = [job.merger.add(rank, "stdout") for rank in range(2)]
    lines = [f"{number} ".ljust(99, "x") + "\n" for number in range(600)]
    for _ in range(10):
        for rank in (0, 1):
            job.write(rank, "".join(lines))
    before, shown = file.writes, file.tell()
    for rank in (0, 1):
        job.write(rank, "".join(lines))
    assert file.writes - before == 2
    assert job.text[shown:] == "".join(f"{r}| {x}" for r in (0, 1) for x in lines)


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


def test_equal_lines_of_many_ranks_are_not_many_lines():
    job = Job(64)
    text = "".join(f"{number}\n" for number in range(MAX_HELD_LINES // 2))
    for rank in range(64):
        job.write(rank, text)
    shown = "".join(f"0-63| {number}\n" for number in range(500))
    assert job.text == shown


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


def test_ranks_that_write_much_lose_nothing(tmp_path):
    script = write_script(
        tmp_path,
        """
        import os
        rank = os.environ["TFRING_X_RANK"]
        for number in range(40000):
            print(rank, number, "x" * 90)
        """,
    )
    done = finish(
        [sys.executable, "-m", "tfring", "run", "-np", "2", sys.executable, script],
    )
    assert done.returncode == 0, done.stderr
    # Until the second rank writes, lines are those of the first.
    first = f"{done.stdout[0]}| "
    lines = [x if x[1:].startswith("| ") else first + x for x in done.stdout.splitlines()]
    for rank in range(2):
        # A line whose end is late may have been cut by one of the other rank.
        written = "".join(x.removeprefix(f"{rank}| ") for x in lines if x.startswith(f"{rank}| "))
        assert written == "".join(f"{rank} {number} {'x' * 90}" for number in range(40000))


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
