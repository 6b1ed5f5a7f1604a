"""tfring.spark.run_elastic: workers come and go with the tasks of Spark."""

import io
import os
import signal

import pytest
import spark_cluster
from engine_training import SECONDS, Job, wait_for

import tfring.spark

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_an_executor_is_killed(spark, tmp_path):
    """Training goes on with one rank, and with two again when Spark has a new executor."""
    output = io.StringIO()

    def run(train):
        return tfring.spark.run_elastic(
            train, num_proc=2, min_num_proc=1, start_timeout=300, stderr=output
        )

    with Job(run, tmp_path) as job:
        begun = wait_for(tmp_path, 2)
        os.kill(spark_cluster.processes("CoarseGrainedExecutorBackend")[0], signal.SIGKILL)
        fewer = wait_for(tmp_path, 1, begun)
        wait_for(tmp_path, 2, fewer)
    ranks, steps, sizes = zip(*job.results(), strict=True)
    assert ranks == (0, 1)
    assert len(set(steps)) == 1
    assert list(sizes) == [[2, 1, 2]] * 2
    assert "generation 3" in output.getvalue()


def test_the_error_of_a_worker(spark):
    def train():
        import tfring as hvd

        hvd.init()
        raise KeyError("the missing column")

    with pytest.raises(RuntimeError, match=r"the elastic job failed:(?s:.*)worker \d") as caught:
        tfring.spark.run_elastic(train, num_proc=1, elastic_timeout=300, reset_limit=1)
    assert "the elastic job failed: exit code" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "the missing column" in str(caught.value)


def test_spark_gives_the_job_up(spark, tmp_path):
    """Then no worker can come any more, and the job does not wait for one."""
    output = io.StringIO()

    def run(train):
        return tfring.spark.run_elastic(train, num_proc=2, elastic_timeout=300, stderr=output)

    with Job(run, tmp_path) as job:
        wait_for(tmp_path, 2)
        spark.sparkContext.cancelAllJobs()
        job.join(SECONDS)  # before its ranks are told to stop
    with pytest.raises(RuntimeError, match=r"Spark has ended its job: (?s:.*)cancelled"):
        job.results()
    assert "the job failed: Spark has ended its job" in output.getvalue()


def test_impossible_parameters(spark):
    with pytest.raises(ValueError, match="min_num_proc=3, num_proc=2, max_num_proc=2"):
        tfring.spark.run_elastic(print, num_proc=2, min_np=3)
