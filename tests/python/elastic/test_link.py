"""A worker's link: the messages of programs."""

from __future__ import annotations

import threading

import pytest
from elastic_threads import LIMIT, SECOND, Links, coordinator_options
from launcher_tools import wait_until

from tfring.elastic import keys
from tfring.elastic.errors import Dismissed, GenerationEnded
from tfring.elastic.records import Position
from tfring.elastic.service import CoordinatorService
from tfring.job.store import StoreConnectionError, StoreTimeoutError
from tfring.runtime._native import core


def ended_in_thread(call):
    """Runs a call in a thread; returns a function that waits for its result or error."""
    result = []

    def run():
        try:
            result.append(call())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def get():
        thread.join(LIMIT)
        assert not thread.is_alive(), "the call hangs"
        return result[0]

    return get


def test_a_generation_is_formed_trains_and_stops_for_a_joiner():
    with Links(np=2, min_np=2, max_np=3, join_interval=0) as job:
        links = [job.link(worker) for worker in (1, 2)]
        for link in links:
            assert link.generation == 0 and not link.may_publish()
            link.ready()
        record = job.train(links)
        first = record.members[0].worker - 1
        assert (record.generation, record.position) == (1, Position())
        assert {link.generation for link in links} == {1}
        assert not any(link.change_pending for link in links)
        for link in links:
            link.step(3)
            link.committed(Position(1, 3))
        third = job.link(3)
        third.ready()
        job.wait(lambda: links[first].change_pending)
        assert not links[1 - first].change_pending, "only rank 0 is told"
        job.stop(links, 1, 1, boundary=True)
        record = job.train([*links, third])
        assert [member.worker for member in record.members][2] == 3
        assert record.position == Position(1, 1)
        assert not links[first].change_pending
        assert job.abandoned == []


def test_waiting_for_all_ends_with_the_generation():
    with Links(np=2, min_np=1, max_np=2) as job:
        links = [job.link(worker) for worker in (1, 2)]
        for link in links:
            link.ready()
        number = links[0].next_record().generation
        links[0].connected(number)
        wait = ended_in_thread(lambda: links[0].wait_go(number))
        links[1].next_record()
        links[1].failed(number, 1)
        error = wait()
        assert isinstance(error, GenerationEnded) and error.generation == number
        job.wait(lambda: sorted(job.abandoned) == [(1, number), (2, number)])
        job.stop(links, number, 5)
        assert job.train(links).position == Position(5, 5)


def test_a_record_that_nobody_took_is_given_back_when_its_generation_ends():
    with Links(np=2, min_np=1, max_np=2) as job:
        links = [job.link(worker) for worker in (1, 2)]
        for link in links:
            link.ready()
        first = job.train(links).generation
        for link in links:
            link.committed(Position(4, 4))
        links[0].failed(first)
        job.wait(lambda: len(job.abandoned) == 2)
        job.stop(links, first, 4)
        second = links[0].next_record().generation
        links[0].failed(second)
        job.stop(links[:1], second, 4)
        # Link 2 may have had the record of the second generation, or heard of its end first.
        assert wait_until(lambda: job.service.record.generation > second)
        record = job.train(links)
        assert record.generation > second and record.position == Position(4, 4)


def test_the_newest_commit_comes_before_the_failure_that_follows_it():
    with Links(np=1, max_np=2, join_interval=0) as job:
        link = job.link(1)
        link.ready()
        number = job.train([link]).generation
        for commit in range(100):
            link.committed(Position(commit, commit))
        link.stopped(number, Position(99, 99))
        assert job.train([link]).position == Position(99, 99)


def test_a_wait_ends_when_the_link_is_closed():
    with Links(np=2) as job:
        link = job.link(1)
        link.ready()
        waits = [ended_in_thread(call) for call in (link.next_record, lambda: link.wait_go(1))]
        link.close()
        assert [type(wait()) for wait in waits] == [Dismissed, Dismissed]
        assert link.dismissed.code == core.membership.EXIT_TRY_AGAIN
        with pytest.raises(Dismissed, match="closed"):
            link.next_record()


def test_a_new_coordinator_hears_that_the_program_recovers():
    """Another store replaces the one that knows it, and does not answer the first request."""
    with Links(np=1) as job:
        link = job.link(1)
        link.ready()
        job.train([link])
        set_key, told, new_watches = link._store.set, [], []
        new_store_asked, recovers_returned = threading.Event(), threading.Event()
        watch_key = link._store.watch

        def watch_new_store(*args, **more):
            new_watches.append(watch_key(*args, **more))
            return new_watches[-1]

        def set_in_two_stores(key, *args, **more):
            if key != keys.RUNS:
                set_key(key, *args, **more)
            elif not told:
                told.append("the old store")
                for watch in link._watches:
                    watch.close()
                if threading.current_thread() is not link._thread:
                    assert new_store_asked.wait(LIMIT)
            elif not new_watches:
                raise StoreConnectionError("there is no store")
            elif not new_store_asked.is_set():
                new_store_asked.set()
                assert recovers_returned.wait(LIMIT)
                raise StoreTimeoutError("the new store does not answer")
            else:
                told.append("the new store")

        link._store.watch, link._store.set = watch_new_store, set_in_two_stores
        link.recovers()
        recovers_returned.set()
        job.wait(lambda: len(told) > 1)


def test_impossible_workers_are_refused():
    with Links() as job, pytest.raises(ValueError, match="ids begin with 1"):
        job.link(0)


def test_without_a_coordinator_those_leave_that_do_not_train():
    with Links(np=1) as job:
        options = core.membership.WorkerOptions()
        options.patience = 3 * SECOND
        trains, waits = job.link(1), job.link(2, options=options)
        trains.ready()
        number = job.train([trains]).generation
        waits.ready()
        job.wait(lambda: job.service.waiting == [2])
        job.service.close()
        error = ended_in_thread(waits.next_record)()
        assert isinstance(error, Dismissed) and error.code == 76
        assert "has not answered worker 2" in error.reason
        assert trains.dismissed is None and job.abandoned == []
        again = coordinator_options(np=1)
        calls = dict.fromkeys(("on_start", "on_kill", "on_note", "on_end"), print)
        with pytest.raises(Dismissed, match="taken for dead"):
            service = CoordinatorService(job.server, again, **calls)
            try:
                trains.failed(number)
                trains.stopped(number, Position())
                trains.next_record()
            finally:
                service.close()
