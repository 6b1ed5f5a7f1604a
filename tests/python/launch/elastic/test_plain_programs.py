"""Programs that never call elastic.run, in elastic jobs: all their ranks start again, or none."""

from __future__ import annotations

import json
import signal
import socket

import pytest
from elastic_runs import ElasticRun

pytest.importorskip("tfring.runtime._native")

# Trains until a file says stop, and meets the others in each step.
PLAIN = """
    import json, os, signal, sys, time
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    FOLDER, WORKER = sys.argv[1], int(os.environ["TFRING_X_ELASTIC_WORKER"])

    def say(event, **more):
        line = {"event": event, "worker": WORKER, "pid": os.getpid(), **more}
        os.write(1, (json.dumps(line) + "\\n").encode())

    def asked(name):
        return os.path.exists(f"{FOLDER}/{name}")

    say("start", life=int(os.environ["TFRING_X_RESTART_COUNT"]), rank=os.environ["HOROVOD_RANK"])
    hvd.init()
    members = core.allreduce(np.eye(hvd.size(), dtype=np.int64)[hvd.rank()] * WORKER,
                             name="members", op=1).tolist()
    say("train", rank=hvd.rank(), size=hvd.size(), members=members)
    while not core.allreduce(np.array([int(asked("stop"))]), name="stop", op=4)[0]:
        if asked("bug"):
            raise ValueError("the data are gone")
        time.sleep(0.01)
    say("end", rank=hvd.rank(), size=hvd.size())
    if asked("stop.at.once"):
        # A rank that is still in the last allreduce would lose one that ends here.
        open(f"{FOLDER}/ended.{hvd.rank()}", "w").close()
        while not all(asked(f"ended.{rank}") for rank in range(hvd.size())):
            time.sleep(0.01)
        os._exit(0)
"""


def test_all_ranks_start_again_and_nobody_trains_alone(tmp_path):
    report, events = tmp_path / "report.json", tmp_path / "events"
    files = ("--exit-report", report, "--events", events)
    options = ("-np", 2, "--min-np", 1, "--spares", 1, *files)
    with ElasticRun(tmp_path, *options, script=PLAIN) as job:
        assert job.trains(lambda m: len(m) == 2) == [1, 2]
        job.kill(2)
        again = job.trains(lambda m: len(m) == 2 and not {1, 2}.intersection(m))
        job.ask("stop")
        assert job.finish() == 0
    sizes = [line["size"] for line in job.said if line["event"] in ("train", "end")]
    assert set(sizes) == {2} and len([x for x in job.said if x["event"] == "end"]) == 2
    (note,) = [line for line in job.errors if "start again" in line]
    assert f"rank 1 (worker 2) on host {socket.gethostname()} ended with exit code 137" in note
    assert note.endswith("; all ranks start again (restart 1 of 3)")
    starts = {line["worker"]: (line["life"], line["rank"]) for line in job.said if "life" in line}
    assert [starts[worker] for worker in again] == [(1, "0"), (1, "1")]
    assert json.loads(report.read_text())["restarts"] == 1
    told = [json.loads(line) for line in events.read_text().splitlines()]
    (restart,) = [one for one in told if one["event"] == "restart"]
    assert restart["restart"] == 1 and note.startswith(f"tfring run: {restart['reason']};")


def test_a_bug_ends_the_job_when_the_restarts_are_used_up(tmp_path):
    options = ("-np", 2, "--min-np", 1, "--max-np", 2, "--reset-limit", 1)
    with ElasticRun(tmp_path, *options, script=PLAIN) as job:
        job.trains(lambda m: len(m) == 2)
        job.ask("bug")
        assert job.finish() == 1
    text = "\n".join(job.errors)
    assert "all ranks start again (restart 1 of 1)" in text
    assert "ValueError: the data are gone, and the 1 restarts are used up" in text


def test_a_rank_that_ends_well_ends_the_job_well(tmp_path):
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, "--max-np", 2, script=PLAIN) as job:
        job.trains(lambda m: len(m) == 2)
        job.ask("stop.at.once")
        job.ask("stop")
        assert job.finish() == 0
    assert {line["worker"] for line in job.said} == {1, 2}


def test_a_rank_that_ends_by_sys_exit_does_not_wait_for_the_others(tmp_path):
    """The others make no call meanwhile from which they would learn it."""
    fails = """
    while hvd.rank() == 0 and os.environ["TFRING_X_RESTART_COUNT"] == "0":
        time.sleep(0.01)
    sys.exit(0 if os.environ["TFRING_X_RESTART_COUNT"] == "1" else "the data are gone")
"""
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, "--max-np", 2, script=PLAIN + fails) as job:
        job.ask("stop")
        assert job.finish() == 0
    assert any("all ranks start again (restart 1 of 3)" in line for line in job.errors)
    assert {line["worker"] for line in job.said} == {1, 2, 3, 4}


def test_ranks_that_stop_by_agreement_have_time_for_their_checkpoint(tmp_path):
    """Rank 1 ends as if it was asked to, while rank 0 still writes."""
    ends = """
    if hvd.rank() == 0:
        open(f"{FOLDER}/writes", "w").close()
        time.sleep(7)
        say("saved")
    while not asked("writes"):
        time.sleep(0.01)
    os._exit(75)
"""
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, "--max-np", 2, script=PLAIN + ends) as job:
        job.trains(lambda m: len(m) == 2)
        job.ask("stop")
        assert job.finish() == 75
    assert [line["event"] for line in job.said].count("saved") == 1


def test_a_signal_while_ranks_of_one_life_still_end_stops_the_job(tmp_path):
    stays = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while hvd.rank() == 0:
        time.sleep(0.01)
    sys.exit(1)
"""
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1, "--max-np", 2, script=PLAIN + stays) as job:
        job.ask("stop")
        job.heard("all ranks start again")
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 75
    assert {line["worker"] for line in job.said} == {1, 2}


def test_all_nodes_start_their_ranks_again(tmp_path):
    with socket.create_server(("localhost", 0)) as probe:
        endpoint = f"localhost:{probe.getsockname()[1]}"
    options = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "a", "--max-restarts", 1)
    reports = [tmp_path / "first.json", tmp_path / "second.json"]
    with (
        ElasticRun(tmp_path, *options, "--exit-report", reports[0], script=PLAIN) as first,
        ElasticRun(tmp_path, *options, "--exit-report", reports[1], script=PLAIN) as second,
    ):
        members = first.trains(lambda m: len(m) == 2)
        owner = first if any(line["worker"] == members[1] for line in first.said) else second
        owner.kill(members[1])
        for each in (first, second):
            each.trains(lambda m: len(m) == 2 and not set(members).intersection(m))
        first.ask("stop")
        assert first.finish() == 0 and second.finish() == 0
    lines = [*first.said, *second.said]
    assert {line["size"] for line in lines if line["event"] == "train"} == {2}
    for node in (first, second):
        assert any("(restart 1 of 1)" in line for line in node.errors)
    assert [json.loads(report.read_text())["restarts"] for report in reports] == [1, 1]
