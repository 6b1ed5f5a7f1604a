"""Broken connections between workers and the coordinator, and invalid messages."""

from __future__ import annotations

from elastic_threads import LIMIT, Links

from tfring.elastic import keys
from tfring.elastic.records import Position
from tfring.job.store import PrefixStore, StoreWatchError
from tfring.runtime._native import core


def reports_come(job, worker):
    """Waits until the coordinator has got a new report of a worker over its store."""
    key = f"{keys.PREFIX}/{keys.report_key(worker)}"
    old = job.server.get(key, LIMIT)
    job.wait(lambda: job.server.get(key, LIMIT) != old)


def test_reports_that_cannot_be_read_are_refused_and_named():
    with Links(np=1) as job:
        store = PrefixStore(keys.PREFIX, job.client())
        report = core.membership.Report()
        report.worker, report.sequence = 4, 1
        of_another = core.membership.encode_report(report)
        for key, message in (
            ("report/1", b"\x01nonsense"),
            ("report/1", b"\x01more nonsense"),
            ("report/x", of_another),
            ("report/99999999999999999999", b""),
            ("report/5", of_another),
        ):
            store.set(key, message)
            job.wait(lambda key=key: any(f'"{key}"' in note for note in job.notes))
        refused = [note for note in job.notes if "was refused" in note]
        assert len(refused) == 4, "the second of the same key is not told of again"
        assert "it is from worker 4" in refused[3]
        link = job.link(1)
        link.ready()
        assert job.train([link]).generation == 1


def test_orders_that_cannot_be_read_are_refused():
    with Links(np=1) as job:
        link = job.link(1)
        link.ready()
        number = job.train([link]).generation
        job.server.set(f"{keys.PREFIX}/{keys.order_key(1)}", b"\xff")
        reports_come(job, 1)
        link.failed(number)
        link.stopped(number, Position(1, 1))
        assert job.train([link]).generation == number + 1


def test_a_connection_that_comes_back_changes_nothing():
    with Links(np=2, max_np=2) as job:
        wire = job.wire()
        links = [job.link(1), job.link(2, job.client(wire.address[1]))]
        for link in links:
            link.ready()
        job.train(links)
        for _ in range(3):
            wire.cut()
            reports_come(job, 2)
        assert job.service.record.generation == 1
        assert job.abandoned == [] and not any("silent" in note for note in job.notes)


def test_a_store_that_was_given_up_is_watched_again_when_it_is_back():
    with Links(np=2, max_np=2) as job:
        wire = job.wire()
        links = [job.link(1), job.link(2, job.client(wire.address[1], lost_after=0.3))]
        for link in links:
            link.ready()
        first = job.train(links).generation
        wire.close_door()
        job.wait(lambda: not links[1]._watches)
        wire.open_door()
        reports_come(job, 2)
        links[0].failed(first)
        job.wait(lambda: (2, first) in job.abandoned)
        job.stop(links, first, 1)
        assert job.train(links).generation == first + 1


def test_watches_that_end_are_begun_again():
    with Links(np=1) as job:
        link = job.link(1)
        link.ready()
        number = job.train([link]).generation
        for watch in (*link._watches, job.service._watch):
            watch._on_close(watch)  # the store sends it nothing more
            watch.fail(StoreWatchError("this client was too slow"))
        link.failed(number)
        link.stopped(number, Position(1, 1))
        assert job.train([link]).generation == number + 1


def test_whoever_closes_the_link_has_left():
    with Links(np=2, min_np=1, max_np=2) as job:
        links = [job.link(worker) for worker in (7, 8)]
        for link in links:
            link.ready()
        number = job.train(links).generation
        links[1].close()
        job.wait(lambda: job.abandoned == [(7, number)])
        links[0].stopped(number, Position(1, 1))
        record = job.train(links[:1])
        assert [member.worker for member in record.members] == [7]
        store = PrefixStore(keys.PREFIX, job.server)
        job.wait(lambda: not store.check([keys.answer_key(8)]) and store.num_keys() == 3)
