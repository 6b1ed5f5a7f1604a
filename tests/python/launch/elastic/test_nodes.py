"""Elastic jobs that are started once per node, as with torchrun; here the nodes are on one host."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter

import pytest
from elastic_runs import TRAINING, ElasticRun
from launcher_tools import LIMIT_SECONDS, alive, run, wait_until
from network_namespaces import hosts

pytest.importorskip("tfring.runtime._native")

from tfring.job.store import Store, StoreTimeoutError, TCPStore
from tfring.launch.elastic import nodes
from tfring.launch.elastic.nodes import NodeHead, open_store
from tfring.launch.elastic.options import ElasticOptions, NodeOptions
from tfring.launch.elastic.orders import EndJob, Note, Orders, StartWorker
from tfring.launch.exit_codes import LOST_PEER
from tfring.launch.hosts.errors import UsageError


@pytest.fixture
def endpoint():
    with socket.create_server(("localhost", 0)) as probe:
        return f"localhost:{probe.getsockname()[1]}"


def node(folder, name, endpoint, *options, nodes="1:2", **more):
    """Starts a node of a job; all nodes look at the same folder."""
    common = ("--nproc-per-node", 1, "--rdzv-endpoint", endpoint, "--rdzv-id", "job")
    return ElasticRun(folder, "--nnodes", nodes, *common, *options, **more)


def test_nodes_join_survive_a_failure_and_end_together(tmp_path, endpoint):
    with node(tmp_path, "a", endpoint, "--max-restarts", 1) as first:
        first.trains(lambda m: m == [1])
        with node(tmp_path, "b", endpoint) as second:
            joined = second.trains(lambda m: len(m) == 2)
            assert first.trains(lambda m: m == joined) and joined[0] == 1
            second.kill(joined[1])
            again = second.trains(lambda m: len(m) == 2 and m != joined)
            assert again[0] == 1
            first.ask("stop")
            assert second.finish() == 0
        assert first.finish() == 0
        ends = [*first.said, *second.said]
        assert sorted(e["rank"] for e in ends if e["event"] == "end") == [0, 1]


def test_a_node_that_finds_no_other_says_so_and_ends_at_a_signal(tmp_path, endpoint):
    report, elsewhere = tmp_path / "report", endpoint.replace("localhost", "127.0.0.9")
    with node(tmp_path, "a", elsewhere, "--exit-report", report) as job:
        job.wait(lambda: any("Nothing is listening at" in line for line in job.errors))
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(LIMIT_SECONDS) == 143
        assert not job.said
    written = json.loads(report.read_text())
    assert (written["state"], written["signal"], written["exit_code"]) == ("ended", "SIGTERM", 143)


def test_more_failures_than_max_restarts_end_the_job_on_all_nodes(tmp_path, endpoint):
    with (
        node(tmp_path, "a", endpoint, nodes=2) as first,
        node(tmp_path, "b", endpoint, nodes=2) as second,
    ):
        members = first.trains(lambda m: len(m) == 2)
        owner = first if any(line["worker"] == members[1] for line in first.said) else second
        owner.kill(members[1])
        assert first.finish() == 1 and second.finish() == 1
        for each in (first, second):
            assert any("the limit of 0 resets is used up" in line for line in each.errors)


def test_a_launcher_of_a_node_that_ends_costs_its_ranks_only(tmp_path, endpoint):
    """Started anew, the node joins again."""
    with node(tmp_path, "a", endpoint, "--max-restarts", 3) as first:
        first.trains(lambda m: len(m) == 1)
        with node(tmp_path, "b", endpoint) as second:
            joined = second.trains(lambda m: len(m) == 2)
            pid = second.pid(joined[1])
            begin = len(first.said)
            second.process.kill()
            second.process.wait(LIMIT_SECONDS)
            assert wait_until(lambda: not alive(pid), 60)
            first.trains(lambda m: m == joined[:1], after=begin)
            # Found by connections, not by silence.
            first.heard(f"worker {joined[1]} .* has lost its connections")
        with node(tmp_path, "b", endpoint) as again:
            again.trains(lambda m: len(m) == 2 and m[0] == joined[0])
            first.ask("stop")
            assert again.finish() == 0
        assert first.finish() == 0


def test_a_node_comes_back_with_another_address(tmp_path):
    """Like a pod: its host keeps its name."""
    with hosts(2) as made:
        endpoint, secret = (
            f"{made.address(0)}:29400",
            {"TFRING_SECRET": "of this test alone 123456"},
        )

        def start(host):
            limit = ("--max-restarts", 3)
            return node(tmp_path, "", endpoint, *limit, inside=made.inside(host), **secret)

        with start(0) as first:
            first.trains(lambda m: len(m) == 1)
            with start(1) as second:
                joined = second.trains(lambda m: len(m) == 2)
                made.kill(1)
            made.move(1, "10.213.7.77")
            with start(1) as again:
                members = again.trains(lambda m: len(m) == 2 and m != joined)
                assert members[0] == joined[0]
                first.ask("stop")
                assert again.finish() == 0
            assert first.finish() == 0


def test_a_node_that_is_lost_before_the_first_generation_has_another_in_its_place(
    tmp_path, endpoint
):
    """Whose workers are among the first: nobody is there whom they would have to wait for."""
    held = TRAINING.replace(
        "    hvd.init()", '    while asked("hold"):\n        time.sleep(0.01)\n    hvd.init()'
    )
    (tmp_path / "hold").touch()
    options = {"nodes": 2, "script": held}
    with node(tmp_path, "a", endpoint, **options) as first:
        first.wait(lambda: first.said)
        with node(tmp_path, "b", endpoint, **options) as second:
            second.wait(lambda: second.said)
            second.process.kill()
            second.process.wait(LIMIT_SECONDS)
        with node(tmp_path, "b", endpoint, **options) as again:
            again.wait(lambda: again.said)
            first.take_back("hold")
            assert again.trains(lambda m: len(m) == 2) == [1, 3]
            first.ask("stop")
            assert again.finish() == 0
        assert first.finish() == 0


def test_the_end_of_the_node_that_serves_ends_the_others(tmp_path, endpoint):
    with node(tmp_path, "a", endpoint, nodes=2) as first:
        first.heard("the nodes are now")
        with node(tmp_path, "b", endpoint, nodes=2) as second:
            members = second.trains(lambda m: len(m) == 2)
            mine = [line["pid"] for line in second.said if line["worker"] in members]
            first.process.kill()
            assert second.finish() == LOST_PEER
            assert not any(alive(pid) for pid in mine)
            assert any("does not serve the job any more" in line for line in second.errors)


def test_without_an_id_another_program_does_not_join(tmp_path, endpoint):
    options = ("--nnodes", "1:2", "--rdzv-endpoint", endpoint)
    with ElasticRun(tmp_path, *options) as first:
        first.trains(lambda m: m == [1])
        other = run(*options, "true", "other")
        assert other.returncode == 2
        assert f'this node is of the job "true other in {os.getcwd()}", but' in other.stderr
        assert "meet. Choose another port" in other.stderr
        with ElasticRun(tmp_path, *options) as second:  # the same, on another node
            second.trains(lambda m: len(m) == 2)
            first.ask("stop")
            assert first.finish() == 0 and second.finish() == 0


def test_a_node_that_waits_says_why_it_does_not_serve(monkeypatch, caplog):
    monkeypatch.setattr(nodes, "STORE_SECONDS", 0.1)
    with socket.create_server(("localhost", 0)) as taken:
        options = NodeOptions("localhost", taken.getsockname()[1], "job", 1)
        with pytest.raises(UsageError, match="in use"):
            open_store(options, 0.3)
    assert "Retrying for 0 s. This launcher cannot listen there: the" in caplog.text
    assert "in use" in caplog.text


class Node:
    """A node in this process, and the orders of its coordinator."""

    def __init__(self, endpoint, least=1):
        host, port = endpoint.split(":")
        elastic = ElasticOptions(np=least, min_np=least, max_np=least)
        self.orders = Orders()
        self.head = NodeHead(NodeOptions(host, int(port), "job", 1), elastic, 60, self.orders)
        self.taken = []

    def order(self, kind):
        """Waits for an order of a kind; returns the first."""

        def find():
            self.taken += self.orders.take_all()
            return any(isinstance(one, kind) for one in self.taken)

        assert wait_until(find, 60), self.taken
        found = next(one for one in self.taken if isinstance(one, kind))
        self.taken.remove(found)
        return found

    def close(self):
        self.head.close()
        self.orders.close()


def no_answer(times):
    """A Store.delete_key that does not answer so many times; of each key the first times."""
    seen, delete = Counter(), Store.delete_key

    def lost(store, key, timeout=None):
        name = store._prefix + key
        seen[name] += 1
        if name.startswith(("orders/", "ended/")) and seen[name] <= times:
            raise StoreTimeoutError("the store did not answer")
        return delete(store, key, timeout)

    return lost


def test_a_store_that_does_not_answer_once_ends_nothing(endpoint, monkeypatch):
    monkeypatch.setattr(Store, "delete_key", no_answer(1))
    node = Node(endpoint)
    try:
        for worker in (1, 2, 3):
            assert node.order(StartWorker).worker == worker
            node.head.ended(worker, 1, "")
        assert not [one for one in node.taken if isinstance(one, EndJob)]
    finally:
        node.head.stop()
        node.close()


def test_a_store_that_does_not_answer_at_all_ends_the_job_of_the_node(endpoint, monkeypatch):
    monkeypatch.setattr(Store, "delete_key", no_answer(1 << 30))
    node = Node(endpoint)
    try:
        end = node.order(EndJob)
        assert end.code == 1
        assert "does not serve the job any more: it was asked 2 times" in end.reason
    finally:
        monkeypatch.undo()
        node.close()


def test_an_end_is_told_that_comes_while_the_follower_is_replaced(endpoint, monkeypatch):
    node = Node(endpoint)

    class Late(nodes.Follower):
        """An end comes after the node has looked for ends."""

        def __init__(self, store, follow, on_lost, work):
            looked = threading.Event()
            super().__init__(store, follow, on_lost, lambda: (work(), looked.set()))
            assert looked.wait(LIMIT_SECONDS)
            node.head.ended(7, 1, "")

    try:
        node.order(StartWorker)
        node.head._follower.close()
        monkeypatch.setattr(nodes, "Follower", Late)
        node.head._attach()
        assert wait_until(lambda: not node.head._ends, 20), "nobody tells the end"
    finally:
        node.head.stop()
        node.close()


def test_a_node_with_other_options_than_the_first_is_told(endpoint):
    first = Node(endpoint)
    second = Node(endpoint, least=2)
    try:
        said = second.order(Note).text
        assert "min_np is 2 here and 1 on the first node, max_np is 2 here and 1 on" in said
        assert not [one for one in first.taken if isinstance(one, Note) and "differ" in one.text]
    finally:
        second.close()
        first.head.stop()
        first.close()


def test_an_order_that_comes_twice_is_carried_out_once(endpoint, monkeypatch):
    set_key = TCPStore.set

    def twice(store, key, value, **more):
        set_key(store, key, value, **more)
        if key.startswith("orders/"):
            time.sleep(0.3)  # the node has carried it out, and deleted it
            set_key(store, key, value, **more)

    monkeypatch.setattr(TCPStore, "set", twice)
    node = Node(endpoint)
    try:
        assert node.order(StartWorker).worker == 1
        node.head.ended(1, 1, "")
        assert node.order(StartWorker).worker == 2
    finally:
        node.head.stop()
        node.close()
