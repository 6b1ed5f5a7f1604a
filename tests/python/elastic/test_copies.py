"""Commits that survive the loss of the only rank or host that has them."""

from __future__ import annotations

import contextlib
import os

import pytest
from elastic_runs import TRAINING, ElasticRun, history_of
from launcher_tools import alive, wait_until
from two_hosts import inside, two_hosts

pytest.importorskip("tfring.runtime._native")

# Logs each completed commit. Replacements wait before init while a file says so.
LOGGED = TRAINING.replace(
    "            state.commit()",
    """            state.commit()
            with open(f"{FOLDER}/commits.{WORKER}", "a") as file:
                file.write(f"{state.step}\\n")""",
).replace(
    "    hvd.init()",
    """    while asked("hold") and os.environ["TFRING_X_ELASTIC_FIRST"] == "0":
        time.sleep(0.01)
    hvd.init()""",
)


def committed(folder, worker):
    """The steps of the last commit of a worker that has returned; 0 if there is none."""
    file = folder / f"commits.{worker}"
    *lines, _ = file.read_text().split("\n") if file.exists() else [""]
    return int(lines[-1]) if lines else 0


def kill(job, worker):
    """Kills a worker; returns the steps that it had committed."""
    job.kill(worker)
    assert wait_until(lambda: not alive(job.pid(worker)), 120)
    return committed(job.folder, worker)


def starts_with(job, members):
    """The line of the first of these members when it began to train with the others."""
    return next(
        line for line in job.said if line["event"] == "train" and line["members"] == members
    )


def finish(job):
    """Ends the training; all ranks have done each step once, from the first one on."""
    job.ask("stop")
    assert job.finish() == 0
    ends = [line for line in job.said if line["event"] == "end"]
    assert ends and {line["history"] for line in ends} == {history_of(ends[0]["step"])}


def memory_of(pid):
    """The sizes of the files in which the host of a worker keeps commits."""
    folder = f"/proc/{pid}/fd"
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{name}").startswith("/memfd:tfring commit"):
                about = os.stat(f"{folder}/{name}")
                found[about.st_ino] = about.st_size
    return list(found.values())


def test_the_only_host_with_ranks_is_lost(tmp_path):
    """A spare on another host has every commit."""
    with two_hosts(tmp_path) as (made, search):
        where = f"{made.address(1)}:2,{made.address(0)}:1"
        options = ("-np", 2, "--min-np", 1, "--max-np", 2, "--spares", 1, "-H", where)
        first = inside(made, 0)
        with ElasticRun(tmp_path, *options, script=LOGGED, inside=first, PATH=search) as job:
            assert job.trains(lambda m: len(m) == 2) == [1, 2]
            assert wait_until(lambda: any(memory_of(job.pid(3))), 120)
            assert wait_until(lambda: committed(tmp_path, 1) > 200, 120)
            assert not any(memory_of(job.pid(1)))  # two ranks there have each commit
            made.kill(1)
            before = max(committed(tmp_path, 1), committed(tmp_path, 2))
            after = starts_with(job, job.trains(lambda m: m == [3]))["step"]
            assert after >= before > 100
            job.heard(r"generation 2: 1 workers from commit \d{2}")
            finish(job)


def test_the_second_loss_comes_before_the_replacement_of_the_first(tmp_path):
    """Its host has a copy of the commits, which is freed when two ranks have them again."""
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, script=LOGGED) as job:
        assert job.trains(lambda m: len(m) == 2) == [1, 2]
        assert not any(memory_of(job.pid(1)))
        job.ask("hold")
        both = kill(job, 2)
        job.trains(lambda m: m == [1])
        assert wait_until(lambda: committed(job.folder, 1) > both + 20, 120)
        assert all(memory_of(job.pid(1)))
        before = kill(job, 1)
        job.take_back("hold")
        members = job.trains(lambda m: len(m) > 0 and not {1, 2} & set(m))
        assert starts_with(job, members)["step"] >= before > 20
        job.heard(r"generation 3: \d workers from commit \d{2}")
        members = job.trains(lambda m: len(m) == 2 and not {1, 2} & set(m))
        assert wait_until(lambda: not any(memory_of(job.pid(members[0]))), 120)
        finish(job)
    assert not [line for line in job.errors if "no worker is left that has" in line]
