"""ElasticRayExecutor: workers follow the nodes of Ray."""

import queue
import threading
import time

import pytest
from ray_state import add_node, alive_actors, start_cluster, stop_cluster

from tfring.ray import ElasticRayExecutor, RayHostDiscovery

SECONDS = 240


@pytest.fixture
def nodes():
    """A cluster whose head has no CPUs, so that it gets no workers, and two nodes with two each."""
    made, both = start_cluster(head_cpus=0, nodes=2)
    yield made, both
    left = alive_actors()
    stop_cluster(made)
    assert left == []


def _training(folder):
    """Counts steps together until a file says stop; each rank says how many ranks there are."""

    def train():
        import json
        import os
        import time

        import numpy as np

        import tfring as hvd
        from tfring._native import core

        def broadcast(data, root_rank):  # without TensorFlow, which takes seconds to load
            data = np.frombuffer(json.dumps(data).encode(), np.uint8)
            size = core.broadcast(np.array([data.size]), name="size", root=root_rank)
            data = data if hvd.rank() == root_rank else np.empty(int(size[0]), np.uint8)
            return json.loads(core.broadcast(data, name="data", root=root_rank).tobytes())

        hvd.init()
        state = hvd.elastic.ObjectState(broadcast, hvd.rank, step=0, sizes=[])

        @hvd.elastic.run
        def loop(state):
            while True:
                stop = os.path.exists(f"{folder}/stop")
                mine = np.array([int(stop), 1], dtype=np.int64)
                total = core.allreduce(mine, name="step", op=1)
                state.step += 1
                if total[1] not in state.sizes[-1:]:
                    state.sizes = [*state.sizes, int(total[1])]
                if hvd.rank() == 0:
                    with open(f"{folder}/new", "w") as file:
                        file.write(" ".join(map(str, state.sizes)))
                    os.rename(f"{folder}/new", f"{folder}/sizes")
                if total[0]:
                    return state.sizes
                time.sleep(0.02)
                state.commit()

        sizes = loop(state)
        return hvd.rank(), state.step, sizes

    return train


def _wait_for(folder, size, since=0):
    """Waits until the ranks have been so many; returns how many changes there were by then."""
    until = time.monotonic() + SECONDS
    while True:
        path = folder / "sizes"
        sizes = path.read_text().split() if path.exists() else []
        if str(size) in sizes[since:]:
            return sizes.index(str(size), since) + 1
        assert time.monotonic() < until, f"there were never {size} ranks, but {sizes}"
        time.sleep(0.1)


class _Job(threading.Thread):
    """Runs a job beside the main thread, which alone may start nodes; stops it at the end."""

    def __init__(self, executor, folder):
        super().__init__()
        self._executor, self._folder = executor, folder
        self._outcome = queue.SimpleQueue()

    def run(self):
        try:
            self._outcome.put((self._executor.run(_training(str(self._folder))), None))
        except BaseException as error:
            self._outcome.put((None, error))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        (self._folder / "stop").touch()
        self.join()

    def results(self):
        """What the ranks returned."""
        results, error = self._outcome.get_nowait()
        if error is not None:
            raise error
        return results


def test_a_node_is_killed_and_one_is_added(nodes, tmp_path):
    cluster, both = nodes

    settings = ElasticRayExecutor.create_settings(timeout_s=60)
    executor = ElasticRayExecutor(settings, min_workers=2, num_workers=4)
    executor.start()
    with _Job(executor, tmp_path) as job:
        begun = _wait_for(tmp_path, 4)
        cluster.remove_node(both[1], allow_graceful=False)
        fewer = _wait_for(tmp_path, 2, begun)
        add_node(cluster)
        _wait_for(tmp_path, 4, fewer)
    results = job.results()
    ranks, steps, sizes = zip(*results, strict=True)
    assert ranks == (0, 1, 2, 3)
    assert len(set(steps)) == 1
    # One worker after the other may leave and come.
    assert all(one == sizes[0] for one in sizes)
    assert sizes[0][0] == sizes[0][-1] == 4 and 2 in sizes[0]


def test_a_discovery_of_the_users_own(nodes, tmp_path):
    """As Horovod's examples do it: a subclass leaves nodes out."""

    class OneNode(RayHostDiscovery):
        most = 1

        def find_available_hosts_and_slots(self):
            found = super().find_available_hosts_and_slots()
            return dict(list(found.items())[: self.most])

    settings = ElasticRayExecutor.create_settings(min_np=2, max_np=3, verbose=2, timeout_s=60)
    settings.discovery = OneNode(cpus_per_slot=1)
    executor = ElasticRayExecutor(settings, override_discovery=False)
    executor.start()
    with _Job(executor, tmp_path) as job:
        begun = _wait_for(tmp_path, 2)
        OneNode.most = 2
        _wait_for(tmp_path, 3, begun)
    results = job.results()
    assert [result[0] for result in results] == [0, 1, 2]


def test_the_error_of_a_worker(nodes):
    def train():
        import tfring as hvd

        hvd.init()
        raise KeyError("the missing column")

    executor = ElasticRayExecutor(min_workers=2, elastic_timeout=5, reset_limit=1)
    executor.start()
    with pytest.raises(RuntimeError, match=r"the elastic job failed:(?s:.*)worker \d") as caught:
        executor.run(train)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "the missing column" in str(caught.value)


def test_impossible_parameters():
    with pytest.raises(ValueError, match="min_workers=3, num_workers=3, max_workers=2"):
        ElasticRayExecutor(min_workers=3, max_workers=2)
    with pytest.raises(ValueError, match=r"settings\.discovery"):
        ElasticRayExecutor(override_discovery=False)
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        ElasticRayExecutor().run(print)
