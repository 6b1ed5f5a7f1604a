"""`tfring run` of elastic jobs: workers are killed, fail, come and go, and the job goes on."""

from __future__ import annotations

import json
import re
import signal
import socket

import pytest
from elastic_runs import TRAINING, ElasticRun, history_of
from launcher_tools import alive, wait_until

pytest.importorskip("tfring.runtime._native")
HERE = socket.gethostname()


def test_a_killed_worker_is_replaced_and_no_step_is_lost(tmp_path):
    report = tmp_path / "report.json"
    files = ("--events", tmp_path / "events", "--exit-report", report)
    options = ("-np", 3, "--min-np", 2, "--max-np", 3, *files)
    with ElasticRun(tmp_path, *options) as job:
        assert job.trains(lambda m: len(m) == 3) == [1, 2, 3]
        pids = {worker: job.pid(worker) for worker in (1, 2, 3)}
        job.wait(
            lambda: {one["worker"] for one in job.said if one["event"] == "train"} == {1, 2, 3}
        )
        job.kill(1)
        # The survivors are the same processes, in the same order; the oldest is rank 0.
        assert job.trains(lambda m: 4 in m) in ([2, 3, 4],)
        assert job.pid(2) == pids[2] and alive(pids[2]) and alive(pids[3])
        job.ask("stop")
        assert job.finish() == 0
        ends = [line for line in job.said if line["event"] == "end"]
        assert sorted(line["rank"] for line in ends) == [0, 1, 2]
        assert {line["history"] for line in ends} == {history_of(ends[0]["step"])}
        slots = {line["worker"]: line["local_rank"] for line in job.said if "local_rank" in line}
        assert slots == {1: 0, 2: 1, 3: 2, 4: 0}
    errors = "\n".join(job.errors)
    assert f"worker 1 (rank 0, host {HERE}, slot 0) ended with signal 9 (SIGKILL)" in errors
    assert f"generation 1: ranks 0-2 are workers 1,2,3 on {HERE}" in errors
    lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    names = [line["event"] for line in lines]
    assert names[0] == "job_started" and names[-1] == "job_ended"
    assert names.count("worker_started") == 4 and names.count("worker_failed") == 1
    wanted = {1: None, 2: None, 3: None, 4: 1}
    started = [line for line in lines if line["event"] == "worker_started"]
    assert {line["worker"]: line.get("replaces") for line in started} == wanted
    written = json.loads(report.read_text())
    assert {one["worker"]: one["replaces"] for one in written["workers"]} == wanted
    assert written["restarts"] == 0


def test_workers_know_what_horovod_tells_them_and_files_keep_their_output(tmp_path):
    options = ("-np", 2, "--min-np", 1, "--output-filename", tmp_path / "out")
    with ElasticRun(tmp_path, *options, "-H", "localhost:1,127.0.0.1:1") as job:
        assert job.trains(lambda m: len(m) == 2) == [1, 2]
        job.ask("stop")
        assert job.finish() == 0
    starts = {line["worker"]: line for line in job.said if line["event"] == "start"}
    assert [starts[w]["host"] for w in (1, 2)] == [HERE, "127.0.0.1"]
    known = {
        worker: [line["variables"][f"HOROVOD_{name}"] for name in ("HOSTNAME", "RANK", "SIZE")]
        for worker, line in starts.items()
    }
    assert known == {1: [HERE, "0", "2"], 2: ["127.0.0.1", "1", "2"]}
    for worker in (1, 2):
        assert '"event": "end"' in (tmp_path / f"out/worker.{worker}/stdout").read_text()


def test_the_same_error_three_times_ends_the_job_and_is_shown(tmp_path):
    report = tmp_path / "report.json"
    options = ("-np", 2, "--min-np", 1, "-H", "localhost:2", "--exit-report", report)
    with ElasticRun(tmp_path, *options) as job:
        job.trains(lambda m: len(m) == 2)
        job.ask("raise.all")
        assert job.finish() == 1
    errors = "\n".join(job.errors)
    assert "ended with exit code 1: ValueError: the disk is full" in errors
    assert "tfring run: the job failed: the same error came 3 times" in errors
    assert re.search(r'^ {6}File ".*, in ', errors, re.MULTILINE) and "Traceback" not in errors
    written = json.loads(report.read_text())
    assert written["state"] == "ended" and written["exit_code"] == 1
    assert "the same error came 3 times" in written["explanation"]
    failed = [one for one in written["workers"] if one["last_lines"]]
    assert sum("ValueError: the disk is full" in one["last_lines"][-1] for one in failed) >= 3
    assert {one["exit_code"] for one in failed} == {1}


def test_a_program_that_ends_itself_before_it_joins_is_not_started_for_ever(tmp_path):
    script = "import sys\nsys.exit('the config file is missing')\n"
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, script=script) as job:
        assert job.finish() == 1
    errors = "\n".join(job.errors)
    assert "the same error came 3 times" in errors and "the config file is missing" in errors


def test_a_program_that_does_not_call_init_is_not_started_for_ever(tmp_path):
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, script="print('trained')\n") as job:
        assert job.finish() == 1
    errors = "\n".join(job.errors)
    assert "tfring run: the job failed: worker " in errors
    assert "ended with exit code 0, and so did 2 before it, and none has called init" in errors


def test_a_job_that_is_stopped_before_init_has_the_exit_code_of_one_that_is_stopped(tmp_path):
    """Slots are free while one worker takes its time to end, and no other is started there."""
    script = """
        import os, signal, sys, time
        first = os.environ["TFRING_X_ELASTIC_WORKER"] == "1"
        signal.signal(signal.SIGINT, lambda *_: (time.sleep(2 * first), sys.exit(0)))
        open(f"{sys.argv[1]}/waits.{os.getpid()}", "w").close()
        time.sleep(100)
    """
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, script=script) as job:
        job.wait(lambda: len(list(tmp_path.glob("waits.*"))) == 2)
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 75
    assert not any("has called init" in line for line in job.errors)


def test_a_signal_to_the_launcher_ends_all(tmp_path):
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1) as job:
        job.trains(lambda m: len(m) == 2)
        pids = [job.pid(1), job.pid(2)]
        job.process.send_signal(signal.SIGTERM)
        job.finish()
        assert not any(alive(pid) for pid in pids)
        assert not any("starts" in line for line in job.errors)
    assert any("stopped by SIGTERM" in line for line in job.errors)


LEAVING = TRAINING.replace(
    "hvd.init()\n",
    """hvd.init()
    import signal
    from tfring.elastic import process
    signal.signal(signal.SIGTERM, lambda *_: process.present().link.leave())
""",
)


def test_workers_that_leave_at_a_signal_are_not_held_for_others(tmp_path):
    """There is one that waits."""
    options = ("-np", 2, "--min-np", 1, "--max-np", 2, "-H", "localhost:3", "--spares", 1)
    with ElasticRun(tmp_path, *options, script=LEAVING) as job:
        job.trains(lambda m: len(m) == 2)
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 75
    assert not any("SIGKILL" in line for line in job.errors)


def test_a_killed_launcher_leaves_nobody(tmp_path):
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1) as job:
        job.trains(lambda m: len(m) == 2)
        job.process.kill()
        job.process.wait()
        assert wait_until(lambda: not any(alive(job.pid(worker)) for worker in (1, 2)), 10)
