"""What workers send to the callbacks of the program, as Horovod's ray_logger does."""

import threading
import warnings

import pytest
from ray_state import wait_until_nothing_is_left

from tfring.ray import ElasticRayExecutor, RayExecutor, ray_logger

pytestmark = pytest.mark.usefixtures("cluster")


def _training():
    def train():
        import tfring as hvd
        from tfring.ray import ray_logger

        hvd.init()
        for step in range(5):
            ray_logger.log({"step": step, "rank": hvd.rank()})
        ray_logger.log({"of": hvd.rank()}, chief_only=False)
        return hvd.rank()

    return train


def _executor():
    executor = ElasticRayExecutor(
        ElasticRayExecutor.create_settings(timeout_s=60), min_workers=2, max_workers=2
    )
    executor.start()
    return executor


def test_callbacks_get_what_rank_0_sends():
    sent, threads = [], set()
    assert _executor().run(
        _training(), callbacks=[sent.append, lambda _: threads.add(threading.current_thread())]
    ) == [0, 1]
    assert [one for one in sent if "step" in one] == [{"step": n, "rank": 0} for n in range(5)]
    assert sorted(one["of"] for one in sent if "of" in one) == [0, 1]
    assert threads == {threading.current_thread()}
    wait_until_nothing_is_left()


def test_what_a_callback_raises_ends_the_job():
    def callback(sent):
        raise KeyError(f"no place for {sent}")

    with pytest.raises(KeyError, match="no place for"):
        _executor().run(_training(), callbacks=[callback])
    wait_until_nothing_is_left()


def test_without_callbacks_it_warns_once():
    with pytest.warns(UserWarning, match="callbacks="):
        ray_logger.log({})  # this process has no rank, so it counts as rank 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ray_logger.log({}, chief_only=False)


def test_execute_has_them_too():
    def send(mine):
        import tfring as hvd
        from tfring.ray import ray_logger

        hvd.init()
        ray_logger.log(mine)
        return hvd.rank()

    sent = []
    settings = RayExecutor.create_settings(timeout_s=60)
    executor = RayExecutor(settings, min_workers=1, max_workers=1)
    executor.start(executable_cls=dict, executable_kwargs={"of": "me"})
    assert executor.execute(send, [sent.append]) == [0]
    assert sent == [{"of": "me"}]
    wait_until_nothing_is_left()


def test_only_elastic_jobs_have_them():
    executor = RayExecutor(num_workers=1)
    for call in (executor.run, executor.execute):
        with pytest.raises(NotImplementedError, match="min_workers"):
            call(_training(), callbacks=[print])
