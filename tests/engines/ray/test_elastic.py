"""ElasticRayExecutor: workers follow the nodes of Ray."""

import functools

import pytest
import ray
from engine_training import Job, wait_for
from ray_state import add_node, alive_actors

import tfring.ray.nodes as nodes_of_ray
from tfring.observe.recorder.choice import known_jobs
from tfring.ray import ElasticRayExecutor, RayHostDiscovery
from tfring.ray.elastic_job import queue_on_this_node


@pytest.fixture(autouse=True)
def no_actors_left(cluster):
    """Fails the test if an actor is alive when it ends."""
    yield
    assert alive_actors() == []


def test_a_node_is_killed_and_one_is_added(cluster, nodes, tmp_path):
    executor = ElasticRayExecutor(min_workers=2, num_workers=4)
    executor.start()
    # Callbacks: their queue is not on the node that is killed.
    with Job(functools.partial(executor.run, callbacks=[print]), tmp_path) as job:
        begun = wait_for(tmp_path, 4)
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        fewer = wait_for(tmp_path, 2, begun)
        nodes.append(add_node(cluster))
        wait_for(tmp_path, 4, fewer)
    results = job.results()
    ranks, steps, sizes = zip(*results, strict=True)
    assert ranks == (0, 1, 2, 3)
    assert len(set(steps)) == 1
    # One worker after the other may leave and come.
    assert all(one == sizes[0] for one in sizes)
    assert sizes[0][0] == sizes[0][-1] == 4 and 2 in sizes[0]


def test_a_discovery_of_the_users_own(tmp_path):
    """As Horovod's examples do it: a subclass leaves nodes out."""

    class OneNode(RayHostDiscovery):
        most = 1

        def find_available_hosts_and_slots(self):
            found = super().find_available_hosts_and_slots()
            return dict(list(found.items())[: self.most])

    before = {job.job for job in known_jobs()}
    settings = ElasticRayExecutor.create_settings(min_np=2, max_np=3, verbose=2, timeout_s=60)
    settings.discovery = OneNode(cpus_per_slot=1)
    executor = ElasticRayExecutor(settings, override_discovery=False)
    executor.start()
    with Job(executor.run, tmp_path) as job:
        begun = wait_for(tmp_path, 2)
        OneNode.most = 2
        wait_for(tmp_path, 3, begun)
    results = job.results()
    assert [result[0] for result in results] == [0, 1, 2]
    known = [job for job in known_jobs() if job.job not in before and job.job.startswith("ray-")]
    # The job is known with its report.
    assert [job.entry.end["report"]["size"] for job in known] == [3]


def test_a_node_dies_before_its_workers_start(tmp_path, monkeypatch):
    """Ray's errors about such workers must not count as errors of the program."""
    living = nodes_of_ray.living_nodes
    asked = 0

    def with_a_dead_one():
        nonlocal asked
        asked += 1
        dead = [living()[0]._replace(name="dead", node_id="0" * 56)] if asked <= 12 else []
        return dead + living()

    monkeypatch.setattr(nodes_of_ray, "living_nodes", with_a_dead_one)
    executor = ElasticRayExecutor(min_workers=2, max_workers=2)
    executor.start()
    with Job(executor.run, tmp_path) as job:
        wait_for(tmp_path, 2)
    assert [result[0] for result in job.results()] == [0, 1]


def test_the_error_of_a_worker():
    """Not that of the other, whose collective ends because of it."""

    def train():
        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the missing column")
        core.allreduce(np.zeros(4), name="waits", op=hvd.Sum)
        core.allreduce(np.zeros(4), name="waits again", op=hvd.Sum)

    executor = ElasticRayExecutor(min_workers=2, reset_limit=0)
    executor.start()
    with pytest.raises(RuntimeError, match=r"the elastic job failed:(?s:.*)worker \d") as caught:
        executor.run(train)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "the missing column" in str(caught.value)


def test_a_function_that_does_not_call_init():
    """Its workers would never be ranks, and the job would start others without end."""
    executor = ElasticRayExecutor(min_workers=1, max_workers=1)
    executor.start()
    with pytest.raises(RuntimeError, match=r"worker \d+ has not called hvd\.init\(\)"):
        executor.run(lambda: 1)


def test_the_cause_is_told_and_not_that_we_ended_a_worker_after_it():
    """Rank 1 is in a long step when the job fails."""

    def train():
        import time

        import tfring as hvd

        hvd.init()
        if hvd.rank() == 1:
            time.sleep(3600)
        raise KeyError("the missing column")

    executor = ElasticRayExecutor(min_workers=2, max_workers=2, reset_limit=0)
    executor.start()
    with pytest.raises(RuntimeError, match="the missing column") as caught:
        executor.run(train)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_queue_for_callbacks_is_on_the_node_of_the_program():
    """Ray would put each on a node of its choice: that all are here is no chance."""
    queues = [queue_on_this_node() for _ in range(6)]
    assert [one.qsize() for one in queues] == [0] * 6
    used = {one["Address"]["NodeID"] for one in alive_actors()}
    for one in queues:
        one.shutdown(force=True)
    assert used == {ray.get_runtime_context().get_node_id()}


def test_impossible_parameters():
    with pytest.raises(ValueError, match="min_workers=3, num_workers=3, max_workers=2"):
        ElasticRayExecutor(min_workers=3, max_workers=2)
    with pytest.raises(TypeError, match="no parameter max_workers"):
        ElasticRayExecutor.create_settings(max_workers=4)
    with pytest.raises(ValueError, match=r"settings\.discovery"):
        ElasticRayExecutor(override_discovery=False)
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        ElasticRayExecutor().run(print)
