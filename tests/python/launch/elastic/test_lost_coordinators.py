"""`tfring coordinator` is killed and started again, or never, while the nodes' ranks train."""

from __future__ import annotations

import socket
import sys
import threading

import pytest
from elastic_runs import ElasticRun, history_of
from launcher_tools import LIMIT_SECONDS, alive, start_command, wait_until
from network_namespaces import hosts

pytest.importorskip("tfring.runtime._native")

from tfring.launch import cli

# A rank goes on by itself, without elastic.run, until a file says stop.
PLAIN = """
    import json, os, sys, time
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    worker = int(os.environ["TFRING_X_ELASTIC_WORKER"])

    def say(event, **more):
        line = {"event": event, "worker": worker, "pid": os.getpid(), **more}
        os.write(1, (json.dumps(line) + "\\n").encode())

    hvd.init()
    step, stop = 0, 0
    while not stop:
        asked = np.array([int(os.path.exists(sys.argv[1] + "/stop"))])
        stop = core.allreduce(asked, name="stop", op=4)[0]
        if step == 0:
            say("train", rank=hvd.rank(), members=list(range(hvd.size())))
        step += 1
        time.sleep(0.005)
    say("end", rank=hvd.rank(), step=step)
"""


@pytest.fixture
def endpoint():
    with socket.create_server(("localhost", 0)) as probe:
        return f"localhost:{probe.getsockname()[1]}"


class Coordinator:
    """A process of `tfring coordinator` that can be restarted; `lines` holds its output."""

    def __init__(self, endpoint, inside=(), **environment):
        self.endpoint, self.lines = endpoint, []
        self._inside, self._environment = inside, environment
        self._readers = []
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind is not None:
            print(*self.lines[-60:], sep="")
        self.kill()

    def start(self):
        """Starts the coordinator."""
        command = [sys.executable, "-m", "tfring", "coordinator", self.endpoint]
        self.process = start_command([*self._inside, *command], **self._environment)
        reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def kill(self):
        """Kills the coordinator, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._readers[-1].join(LIMIT_SECONDS)
        self.process.stdout.close()

    def heard(self, text, after=0):
        """Waits until a line after the first `after` lines contains a text."""
        found = wait_until(lambda: any(text in line for line in self.lines[after:]), LIMIT_SECONDS)
        assert found, self.lines

    def _read(self, pipe):
        with pipe:
            for line in pipe:
                self.lines.append(line)


def node(folder, endpoint, *options, nodes="1:2", **more):
    """Starts a node of a job; all nodes look at the same folder."""
    common = ("--nproc-per-node", 1, "--coordinator", endpoint, "--rdzv-id", "job")
    common += ("--max-restarts", 9)
    return ElasticRun(folder, "--nnodes", nodes, *common, *options, **more)


def ends_of(*nodes):
    """The last lines of the ranks of nodes, in rank order."""
    ends = [line for one in nodes for line in one.said if line["event"] == "end"]
    return sorted(ends, key=lambda line: line["rank"])


def test_what_happens_while_the_coordinator_is_away_is_made_up_for(tmp_path, endpoint):
    """A rank is killed meanwhile, and a node is started."""
    with (
        Coordinator(endpoint) as coordinator,
        node(tmp_path, endpoint) as first,
    ):
        first.trains(lambda m: len(m) == 1)
        with node(tmp_path, endpoint) as second:
            members = first.trains(lambda m: len(m) == 2)
            coordinator.kill()
            second.heard("cannot be reached")
            second.process.kill()  # its rank ends with it
            pid = second.pid(members[1])
            assert wait_until(lambda: not alive(pid), LIMIT_SECONDS)
        with node(tmp_path, endpoint) as third:
            begin = len(first.said)
            coordinator.start()
            again = third.trains(lambda m: len(m) == 2 and m[0] == members[0])
            assert first.trains(lambda m: m == again, after=begin)
            first.ask("stop")
            assert first.finish() == 0 and third.finish() == 0
        ends = ends_of(first, third)
        assert all(end["history"] == history_of(end["step"]) for end in ends)


def test_a_coordinator_comes_back_with_another_address(tmp_path):
    """Like a pod: its name leads to it."""
    secret = {"TFRING_SECRET": "of this test alone 123456"}
    with hosts(2) as made:
        made.name_all(tmp_path)
        with (
            Coordinator("h1:29400", made.inside(1), **secret) as coordinator,
            node(tmp_path, "h1:29400", inside=made.inside(0), **secret) as first,
        ):
            members = first.trains(lambda m: len(m) == 1)
            coordinator.kill()
            made.move(1, "10.213.7.78")
            made.name_all(tmp_path)
            coordinator.start()
            coordinator.heard("of 1 workers was there before this coordinator")
            first.ask("stop")
            assert first.finish() == 0
            assert [end["worker"] for end in ends_of(first)] == members


def test_ranks_that_recover_are_asked_to_end_when_no_coordinator_comes(tmp_path, endpoint):
    with (
        Coordinator(endpoint) as coordinator,
        node(tmp_path, endpoint, "--elastic-timeout", 12) as first,
    ):
        members = first.trains(lambda m: len(m) == 1)
        coordinator.kill()
        assert first.finish() == 75
        assert any(
            "could not be reached for 12 s: the ranks save and end" in line for line in first.errors
        )
        assert any("the ranks have stopped before the end" in line for line in first.errors)
        assert not any("the job failed" in line for line in first.errors)
        assert not alive(first.pid(members[0]))


def test_ranks_of_a_plain_program_go_on_without_a_coordinator(tmp_path, endpoint):
    options = ("--elastic-timeout", 12)
    with (
        Coordinator(endpoint) as coordinator,
        node(tmp_path, endpoint, *options, nodes=2, script=PLAIN) as first,
        node(tmp_path, endpoint, *options, nodes=2, script=PLAIN) as second,
    ):
        first.trains(lambda m: len(m) == 2)
        coordinator.kill()
        for each in (first, second):
            each.heard("could not be reached for 12 s: the ranks go on")
        first.ask("stop")
        assert first.finish() == 0 and second.finish() == 0
        assert len(ends_of(first, second)) == 2


def test_a_coordinator_for_other_hosts_needs_a_secret(monkeypatch, capsys):
    monkeypatch.delenv("TFRING_SECRET", raising=False)
    assert cli.main(["coordinator", "head.invalid:29400"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tfring coordinator: the TCPStore at head.invalid port 29400 has no sec")
