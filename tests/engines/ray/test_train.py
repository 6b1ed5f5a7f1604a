"""TfringConfig: jobs whose workers Ray Train starts, watches and restarts."""

import pytest
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tfring.ray import TfringConfig

pytestmark = pytest.mark.usefixtures("cluster")


def _trainer(train, tmp_path, *, failures=0, timeout_s=120, **options):
    return DataParallelTrainer(
        train,
        train_loop_config={"folder": str(tmp_path)},
        backend_config=TfringConfig(timeout_s=timeout_s),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="tfring",
            storage_path=str(tmp_path / "results"),
            failure_config=FailureConfig(max_failures=failures),
        ),
        **options,
    )


def test_a_trainer(tmp_path):
    """Ranks, a collective, reports, and parts of a dataset."""
    import ray

    def train(config):
        import numpy as np
        import ray.train

        import tfring as hvd
        from tfring.ray import iterator_shard
        from tfring.runtime._native import core

        hvd.init()
        assert hvd.rank() == ray.train.get_context().get_world_rank()
        own = sum(row["id"] for row in iterator_shard().iter_rows())
        total = core.allreduce(np.array([own]), name="sum", op=hvd.Sum)
        ray.train.report({"total": int(total[0])})
        with open(f"{config['folder']}/rank{hvd.rank()}", "w") as file:
            print(int(total[0]), hvd.size(), file=file)

    _trainer(train, tmp_path, datasets={"train": ray.data.range(10)}).fit()
    assert [(tmp_path / f"rank{r}").read_text() for r in range(2)] == ["45 2\n"] * 2


def test_after_a_failure_the_workers_form_a_new_job(tmp_path):
    """The rank that does not fail waits in a collective, until Ray Train ends it."""

    def train(config):
        import os

        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        failed = f"{config['folder']}/failed"
        if hvd.rank() == 1 and not os.path.exists(failed):
            open(failed, "w").close()
            raise ValueError("the first attempt")
        total = core.allreduce(np.array([1]), name="sum", op=hvd.Sum)
        with open(f"{config['folder']}/rank{hvd.rank()}", "w") as file:
            print(int(total[0]), file=file)

    _trainer(train, tmp_path, failures=1).fit()
    assert [(tmp_path / f"rank{r}").read_text() for r in range(2)] == ["2\n"] * 2
    assert (tmp_path / "failed").exists()


def test_a_failure_before_init_does_not_wait_for_the_rank_that_is_in_init(tmp_path):
    """That rank would wait until timeout_s: Ray Train ends it in the middle of init."""

    def train(config):
        import os
        import time

        import ray.train

        import tfring as hvd

        begun = f"{config['folder']}/begun"
        if ray.train.get_context().get_world_rank() == 1:
            while not os.path.exists(begun):
                time.sleep(0.1)
            raise ValueError("no such file")
        open(begun, "w").close()
        try:
            hvd.init()
        finally:
            open(f"{config['folder']}/ended", "w").close()

    with pytest.raises(Exception, match="no such file"):
        _trainer(train, tmp_path, timeout_s=200).fit()
    assert not (tmp_path / "ended").exists()
