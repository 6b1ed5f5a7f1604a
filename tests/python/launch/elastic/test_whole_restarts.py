"""A lost worker restarts all workers, until one has reached elastic.run."""

from __future__ import annotations

import queue

import pytest

pytest.importorskip("tfring.runtime._native")

from elastic_threads import SECRET
from launcher_tools import wait_until

from tfring.elastic import keys
from tfring.elastic.link import WorkerLink
from tfring.elastic.records import Position
from tfring.job.store import PrefixStore, StoreTimeoutError, TCPStore
from tfring.launch.elastic.coordinator import Service
from tfring.launch.elastic.options import ElasticOptions
from tfring.launch.elastic.orders import KillWorker, Restart, StartWorker

LIMIT = 60.0


class SlowStore(TCPStore):
    """One in whose server no look-up is answered in time."""

    def check(self, key_list, timeout=None):
        raise StoreTimeoutError(f"no answer about {key_list}")


class Job:
    """A coordinator of two workers, which are threads of this process."""

    def __init__(self, made=TCPStore):
        self.store = made("localhost", 0, is_master=True, secret=SECRET, timeout=LIMIT)
        self.orders = queue.SimpleQueue()
        elastic = ElasticOptions(np=2, min_np=1, max_np=2)
        self.service = Service(self.store, elastic, LIMIT, self.orders.put)
        self.service.set_hosts([("a", 2)])
        self.links = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for link in self.links:
            link.close()
        self.service.close()
        self.store.close()

    def next(self, kind):
        """Waits for the next order of a kind."""
        while not isinstance(order := self.orders.get(timeout=LIMIT), kind):
            pass
        return order

    def begin(self):
        """Starts the workers and connects them; returns their links by their ids."""
        workers = [self.next(StartWorker).worker for _ in range(2)]
        abandon = {"on_abandon": lambda generation: None}
        links = {one: WorkerLink(self.store, one, "a", one % 2, **abandon) for one in workers}
        self.links += links.values()
        for link in links.values():
            link.ready()
        for link in links.values():
            link.connected(link.next_record().generation)
        for link in links.values():
            link.wait_go(1)
        return links

    def come_to_run(self):
        """Acts as a worker that reaches elastic.run."""
        PrefixStore(keys.PREFIX, self.store).set(keys.RUNS, b"")

    def lose(self, worker):
        """Ends a worker's process."""
        self.service.ended(worker, 137, "")


def test_a_store_that_is_slow_hides_no_rank_that_is_needed():
    with Job(SlowStore) as job:
        lost, _ = job.begin()
        job.lose(lost)
        assert job.next((Restart, StartWorker)) == Restart(
            1, 3, f"rank 0 (worker {lost}) on host a ended with exit code 137"
        )


def test_one_that_came_to_run_as_it_was_ended_does_not_count_for_the_next_life():
    with Job() as job:
        lost, other = job.begin()
        job.lose(lost)
        assert job.next(KillWorker).worker == other
        job.come_to_run()
        job.lose(other)
        lost, _ = job.begin()
        job.lose(lost)
        assert job.next((Restart, StartWorker)).number == 2


@pytest.mark.parametrize("told", ["by the key", "by its report"])
def test_when_one_has_come_to_run_a_lost_one_is_replaced(told):
    with Job() as job:
        lost, other = (links := job.begin())
        if told == "by the key":
            job.come_to_run()
        else:
            links[other].synced(1, Position())
        assert wait_until(lambda: job.service._service.recovers, LIMIT)
        job.lose(lost)
        assert isinstance(job.next((Restart, StartWorker)), StartWorker)
