"""tfring.spark.run: jobs whose ranks are in the tasks of a barrier stage."""

import io
import os
import re
import signal
import threading

import pytest
import spark_cluster

import tfring.spark
from tfring.observe.recorder.choice import known_jobs

pytestmark = pytest.mark.usefixtures("nothing_left")


def _sum_of_ranks():
    """A function that trains nothing, without TensorFlow, which takes seconds to load."""

    def work(offset=0, *, times=1):
        import os

        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        total = core.allreduce(np.array([hvd.rank() + offset]), name="sum", op=hvd.Sum)
        print(f"rank {hvd.rank()} says {os.environ.get('SAID')}", flush=True)
        return hvd.rank(), hvd.local_rank(), hvd.size(), int(total[0]) * times

    return work


def test_results_by_rank(spark, capfd):
    results = tfring.spark.run(
        _sum_of_ranks(), args=(10,), kwargs={"times": 2}, num_proc=2, env={"SAID": "this"}
    )
    assert results == [(rank, rank, 2, 42) for rank in range(2)]
    output = capfd.readouterr().out
    assert re.search(r"^(0[|] )?rank 0 says this$", output, re.M), output
    assert re.search(r"^(1[|] )?rank 1 says this$", output, re.M), output


def test_a_job_that_is_over_is_known_with_its_report(spark):
    before = {job.job for job in known_jobs()}
    tfring.spark.run(_sum_of_ranks(), num_proc=2, env={"SAID": "that"})
    ends = [job.entry.end for job in known_jobs() if job.job not in before]
    assert [end["state"] for end in ends if end.get("report", {}).get("size") == 2] == ["ended"]


def test_output_goes_where_the_user_wants(spark):
    """And `num_proc` is Spark's own parallelism, a second job in the same Spark."""
    out = io.StringIO()
    results = tfring.spark.run(
        _sum_of_ranks(), stdout=out, prefix_output_with_timestamp=True, use_gloo=True
    )
    assert [result[0] for result in results] == [0, 1]
    assert re.search(r"\d\d:\d\d:\d\d.*rank 1 says None", out.getvalue()), out.getvalue()


def test_a_rank_fails(spark):
    """The error names the rank with its traceback, and the rank that only waited is not told."""

    def work():
        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the missing column")
        core.allreduce(np.array([1]), name="never", op=hvd.Sum)

    with pytest.raises(RuntimeError, match="Rank 1 failed in") as caught:
        tfring.spark.run(work, num_proc=2)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in work" in str(caught.value) and "the missing column" in str(caught.value)


def test_a_process_is_killed(spark):
    """Also what the function has started ends."""

    def work(seconds):
        import os
        import signal
        import subprocess

        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        subprocess.Popen(["sleep", seconds])
        core.allreduce(np.array([1]), name="first", op=hvd.Sum)
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        core.allreduce(np.array([1]), name="second", op=hvd.Sum)

    seconds = f"{100_000 + os.getpid()}"  # tells these from those of other tests
    with pytest.raises(RuntimeError, match="rank"):
        tfring.spark.run(work, args=(seconds,), num_proc=2)
    spark_cluster.wait_until_nothing_is_left(spark.sparkContext, seconds)


def test_an_executor_is_killed(spark, tmp_path):
    """The job fails with an error that says so; Spark's next job has executors again."""

    def work(folder):
        import time

        import tfring as hvd

        hvd.init()
        open(f"{folder}/rank{hvd.rank()}", "w").close()
        while True:
            time.sleep(0.1)

    def kill():
        while len(os.listdir(tmp_path)) < 2:
            if stop.wait(0.1):
                return
        seen.extend(spark_cluster.of_ranks())
        os.kill(spark_cluster.processes("CoarseGrainedExecutorBackend")[0], signal.SIGKILL)

    seen, stop = [], threading.Event()
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        with pytest.raises(RuntimeError, match=r"ranks without a result: 0, 1\. .*Spark"):
            tfring.spark.run(work, args=(str(tmp_path),), num_proc=2)
    finally:
        stop.set()
        killer.join()
    # Or the tests could not find what is left of a job: two ranks were there, and two agents.
    for word in ("function_task", "host_agent"):
        assert sum(word in command for command in seen) >= 2, seen
    results = tfring.spark.run(_sum_of_ranks(), num_proc=2, start_timeout=300)
    assert [result[3] for result in results] == [1, 1]


def test_too_few_places(spark):
    """Spark has two cores: a barrier stage of three tasks never starts."""
    with pytest.raises((TimeoutError, RuntimeError), match="only 0 of 3 Spark tasks started"):
        tfring.spark.run(_sum_of_ranks(), num_proc=3, start_timeout=2)


def test_impossible_parameters(spark):
    with pytest.raises(ValueError, match="num_proc=0"):
        tfring.spark.run(print, num_proc=0)
    with pytest.raises(NotImplementedError, match="needs no MPI"):
        tfring.spark.run(print, use_mpi=True)
    for env in ({"A B=C": "x"}, {"PATH": None}):
        with pytest.raises(ValueError, match="give a variable's name"):
            tfring.spark.run(print, num_proc=1, env=env)
