"""Elastic jobs of real processes: ranks are killed, join, leave and fail while they train."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from elastic_jobs import REPORT, SECOND, ElasticJob, alive, wait_for_commits, worker_of_rank
from launcher_tools import write_script

pytest.importorskip("tfring.runtime._native")

# Seconds for which a rank keeps Python's lock: longer than a rank may be silent.
LOCK_SECONDS = int(os.environ.get("TFRING_TEST_LOCK_SECONDS", "12"))

# Trains without TensorFlow: a step is an allreduce, the weights are a hash of all steps so far.
# The first argument is a folder; the file "stop" in it ends the training.
NUMBERS = """
    import ctypes
    import sys
    import numpy as np
    from tfring.elastic.state import ObjectState
    from tfring.elastic.loop import run
    from tfring.runtime._native import core

    WORKER = int(os.environ["TFRING_X_ELASTIC_WORKER"])
    FOLDER = sys.argv[1]
    STEPS_OF_A_COMMIT = int(os.environ.get("STEPS_OF_A_COMMIT", "1"))

    def broadcast(value, root_rank):
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        size = core.broadcast(np.array([data.size]), name="size", root=root_rank)
        data = data if hvd.rank() == root_rank else np.empty(int(size[0]), np.uint8)
        return json.loads(core.broadcast(data, name="data", root=root_rank).tobytes())

    def asked(name):
        return os.path.exists(f"{FOLDER}/{name}")

    hvd.init()
    say("up", worker=WORKER, local_rank=hvd.local_rank())

    @run
    def train(state):
        say("train", step=state.step, history=state.history)
        while True:
            if asked(f"raise.{WORKER}"):
                raise ValueError(f"worker {WORKER} was asked to fail")
            stop, number = core.allreduce(
                np.array([asked("stop"), state.step]), name="step", op=4
            ).tolist()
            assert number == state.step, "ranks are not at the same step"
            if stop:
                break
            time.sleep(0.005)
            if asked(f"lock.{WORKER}"):
                with open(f"{FOLDER}/lock.{WORKER}") as file:
                    seconds = int(file.read())
                os.unlink(file.name)
                say("locks", worker=WORKER)
                ctypes.PyDLL(None).sleep(seconds)  # a call that keeps Python's lock
            state.history = (state.history * 31 + state.step) % 1000003
            state.step += 1
            if state.step % STEPS_OF_A_COMMIT == 0:
                state.commit()
                say("commit", step=state.step)
        say("through")
        while asked(f"hold.{WORKER}"):
            time.sleep(0.02)
        return state.step

    def reset():
        say("reset", callers=float(core.allreduce(np.ones(1), name="reset", op=1)[0]))

    state = ObjectState(broadcast, hvd.rank, step=0, history=7)
    state.register_reset_callbacks([reset])
    steps = train(state)
    again = run(lambda state: core.allreduce(np.array([state.step]), name="again", op=3)[0])
    assert asked("once") or again(state) == steps  # another training, if all are still there
    say("end", steps=steps, step=state.step, history=state.history)
"""


# Each rank has an allreduce with those of its process set, which is new in each generation.
SETS = """
    import numpy as np
    from tfring.elastic.state import ObjectState
    from tfring.elastic.loop import run
    from tfring.runtime._native import core

    hvd.init()

    @run
    def train(state):
        outer, inner = core.add_process_set([0, hvd.size() - 1]), core.add_process_set([1])
        mine, ranks = (inner, 1) if hvd.rank() == 1 and hvd.size() == 3 else (outer, 2)
        say("train", step=state.step)
        while core.allreduce(np.array([state.step]), name="step", op=1)[0] < 100 * hvd.size():
            for _ in range(5):
                total = core.allreduce(np.ones(1), name="of a set", op=1, process_set=mine)[0]
                assert total == ranks, f"{total} ranks of {ranks}"
            time.sleep(0.005)
            state.step += 1
            state.commit()
            say("commit", step=state.step)

    train(ObjectState(lambda value, root_rank: value, hvd.rank, step=0))
    say("end")
"""


@pytest.fixture
def start(tmp_path):
    """Starts a job, by default of the script above."""

    def started(slots, text=NUMBERS, **options):
        header = "import tfring as hvd\n" + REPORT
        script = write_script(tmp_path, text, header=header)
        return ElasticJob(script, tmp_path, slots=slots, **options)

    return started


def history_of(steps):
    value = 7
    for step in range(steps):
        value = (value * 31 + step) % 1000003
    return value


def check_end(job, workers):
    """Checks that the job ended well, and that these workers ended with equal weights."""
    assert job.wait_for_end() == (0, "the training is over")
    ends = job.lines("end")
    assert {one["worker"] for one in ends} == workers
    assert len({(one["steps"], one["step"], one["history"]) for one in ends}) == 1
    assert ends[0]["history"] == history_of(ends[0]["step"])
    # No commit of the survivors was lost, and no step came twice.
    for worker in workers:
        steps = [one["step"] for one in job.lines("commit", worker=worker)]
        assert steps == sorted(set(steps)), f"worker {worker}"
    assert all(one["history"] == history_of(one["step"]) for one in job.lines("train"))


def test_ranks_are_killed_and_others_take_their_places(start, tmp_path):
    with start(3, min_np=1) as job:
        assert wait_for_commits(job, 3) == {1, 2, 3}
        pids = dict(job.pids)
        for rank in (2, 0, 1):  # the new worker is the last rank then
            killed = worker_of_rank(job, rank)
            job.kill(killed)
            left = wait_for_commits(job, 2)
            assert killed not in left
            workers = wait_for_commits(job, 3)  # a new one has joined at a commit
            assert left < workers
        (tmp_path / "stop").touch()
        check_end(job, workers)
        # Workers of the first three that were not killed are still the same processes.
        survivors = workers & set(pids)
        assert {one["pid"] for one in job.lines("end") if one["worker"] in survivors} <= set(
            pids.values()
        )
        slots = {one["worker"]: one["local_rank"] for one in job.lines("up")}
        assert sorted(slots[worker] for worker in workers) == [0, 1, 2]
        # One reset for each change: three made the job smaller, three larger.
        for worker in survivors:
            resets = job.lines("reset", worker=worker)
            assert [one["size"] for one in resets] == [2, 3] * 3
            # A worker that has just joined takes no part in collectives of the others' callbacks.
            assert {one["callers"] for one in resets} == {2.0}
    assert not any(alive(pid) for pid in job.pids.values())


def test_hosts_are_swapped_between_two_commits(start, tmp_path):
    """One of two hosts is replaced repeatedly, also during the previous change."""
    rng, names = random.Random(3494), ["a", "b"]
    with start(2, min_np=1, env={"STEPS_OF_A_COMMIT": "60"}) as job:
        wait_for_commits(job, 2, 1)
        for number in range(8):
            job.service.set_hosts([(name, 1) for name in names])
            if number % 3:
                time.sleep(rng.random())
            else:
                wait_for_commits(job, 2, 1)
            names[rng.randrange(2)] = f"host{number}"
        workers = wait_for_commits(job, 2, 2)
        (tmp_path / "stop").touch()
        check_end(job, workers)
        # One that had not trained yet when its host was taken away may have been killed.
        dismissed = {one["worker"] for one in job.lines("train")} - workers
        assert {job.exit_codes[worker] for worker in dismissed} == {76}


def test_process_sets_are_made_again_when_a_rank_is_lost(start):
    """Rank 1 is alone in a set, rank 2 is in one with rank 0."""
    with start(3, SETS, min_np=3) as job:
        wait_for_commits(job, 3)
        killed = worker_of_rank(job, 2)
        job.kill(killed)
        assert killed not in wait_for_commits(job, 3)
        assert job.wait_for_end() == (0, "the training is over")
        assert len(job.lines("end")) == 3
        assert {one["pid"] for one in job.lines("end")} >= {
            pid for worker, pid in job.pids.items() if worker < 4 and worker != killed
        }


def test_a_rank_is_killed_when_others_are_done(start, tmp_path):
    with start(3, min_np=2, max_np=3) as job:
        wait_for_commits(job, 3)
        slow = worker_of_rank(job, 1)
        (tmp_path / f"hold.{slow}").touch()
        (tmp_path / "once").touch()
        (tmp_path / "stop").touch()
        job.wait(lambda: len(job.lines("through")) == 3)
        job.kill(slow)
        others = {1, 2, 3} - {slow}
        assert job.wait_for_end()[0] == 0
        ends = job.lines("end")
        assert {one["worker"] for one in ends} >= others
        assert len({(one["step"], one["history"]) for one in ends}) == 1


def test_a_rank_that_was_stopped_and_wakes_up_leaves(start, tmp_path):
    with start(2, min_np=1, kills=False, lease=5 * SECOND) as job:
        wait_for_commits(job, 2)
        stopped = worker_of_rank(job, 0)
        job.kill(stopped, signal.SIGSTOP)
        left = wait_for_commits(job, 1)
        job.kill(stopped, signal.SIGCONT)
        job.wait(lambda: stopped in job.exit_codes)
        assert job.exit_codes[stopped] == 76
        assert "leaves the job" in job.stderr_of(stopped)
        assert left < wait_for_commits(job, 2)  # its slot is free again
        (tmp_path / "stop").touch()
        assert job.wait_for_end()[0] == 0


def test_a_rank_that_keeps_pythons_lock_goes_on_in_its_generation(start, tmp_path):
    with start(2, min_np=1, lease=SECOND) as job:
        wait_for_commits(job, 2)
        hold_lock(job, tmp_path, worker_of_rank(job, 0), seconds=LOCK_SECONDS)
        wait_for_commits(job, 2)
        assert job.service.record.generation == 1
        (tmp_path / "stop").touch()
        assert job.wait_for_end()[0] == 0
        assert set(job.exit_codes.values()) == {0} and len(job.exit_codes) == 2


def test_a_rank_that_keeps_pythons_lock_while_another_is_killed_recovers_with_the_rest(
    start, tmp_path
):
    with start(3, min_np=1, lease=SECOND) as job:
        wait_for_commits(job, 3)
        holder, killed = worker_of_rank(job, 1), worker_of_rank(job, 0)
        hold_lock(job, tmp_path, holder, seconds=7)
        job.kill(killed)
        wait_for_commits(job, 3)
        assert holder in [one.worker for one in job.service.record.members]
        (tmp_path / "stop").touch()
        assert job.wait_for_end()[0] == 0
        assert job.exit_codes.pop(killed) == 137 and set(job.exit_codes.values()) == {0}


def hold_lock(job, folder, worker, seconds):
    """Makes a worker keep Python's lock for this time, from the return on."""
    new = folder / "new"
    new.write_text(str(seconds))
    new.rename(folder / f"lock.{worker}")
    job.wait(lambda: job.lines("locks", worker=worker))


def test_a_coordinator_that_is_gone_ends_its_workers(start, tmp_path):
    with start(2) as job:
        wait_for_commits(job, 2)
        job.service.close()
        job.kill(worker_of_rank(job, 1))
        job.wait(lambda: len(job.exit_codes) == 2)
        assert sorted(job.exit_codes.values()) == [76, 137]
        last = next(worker for worker, code in job.exit_codes.items() if code == 76)
        assert "leaves the job" in job.stderr_of(last)
