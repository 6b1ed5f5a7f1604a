"""The options of elastic jobs: their meaning, refusals, and the output of discovery scripts."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest
from launcher_tools import alive, wait_until
from run_options import refused, run_options

from tfring.launch import exit_codes
from tfring.launch.elastic import discovery
from tfring.launch.elastic.coordinator import coordinator_options
from tfring.launch.elastic.discovery import Discovered, DiscoveryError, parse_hosts_found
from tfring.launch.elastic.options import NO_LIMIT
from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.elastic import elastic_options
from tfring.runtime._native import core
from tfring.runtime.settings.table import SETTINGS

HERE = socket.gethostname()


def elastic(*words):
    return elastic_options(run_options(*words))[0]


def counts(*words):
    made = elastic(*words)
    return made.np, made.min_np, made.max_np, made.spares, made.hosts


def test_in_a_job_of_a_scheduler_it_begins_with_all_its_slots(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a,b")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    assert counts("--min-np", 1) == (4, 1, NO_LIMIT, 0, (("a", 2), ("b", 2)))
    # With -np alone it is on this host, as a non-elastic job.
    assert counts("-np", 3, "--min-np", 1) == (3, 1, NO_LIMIT, 0, ((HERE, 3),))


def test_a_job_without_these_options_is_not_elastic():
    assert elastic("-np", 2) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-np", 4, "--min-np", 2), (4, 2, NO_LIMIT, 0, ((HERE, 4),))),
        (("-np", 4, "--max-np", 8), (4, 4, 8, 0, ((HERE, 8),))),
        (("--min-num-proc", 2, "--max-num-proc", 3), (2, 2, 3, 0, ((HERE, 3),))),
        (("-np", 2, "--spares", 1), (2, 2, 2, 1, ((HERE, 3),))),
        (("-np", 2, "--min-np", 1, "--slots", 8), (2, 1, NO_LIMIT, 0, ((HERE, 8),))),
        (
            ("--min-np", 1, "-H", "localhost:1,127.0.0.1:2"),
            (3, 1, NO_LIMIT, 0, ((HERE, 1), ("127.0.0.1", 2))),
        ),
        (("--spares", 1, "-H", "localhost:3"), (2, 2, 2, 1, ((HERE, 3),))),
        (("--min-np", 3, "--spares", 1, "-H", "localhost:3"), (3, 3, 3, 1, ((HERE, 3),))),
        (("-np", 4, "--host-discovery-script", "echo a:1"), (4, 4, NO_LIMIT, 0, ())),
    ],
)
def test_how_many_workers_there_are_and_where(words, expected):
    assert counts(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-np", 1, "--min-np", 2), "-np 1 is not between --min-np 2"),
        (("-np", 9, "--max-np", 8), "-np 9 is not between --min-np 9 and --max-np 8"),
        (("-np", 3, "--min-np", 1, "-H", "a:2"), "-np 3 needs more slots than the 2 of all hosts"),
        (("--min-np", 3, "-H", "a:2"), "--min-np 3 needs more slots than the 2 of all hosts"),
        (("-np", 2, "--reset-limit", 3), "--reset-limit is for elastic jobs"),
        (("--min-np", 1, "-H", "a:1", "--slots", 3), "--slots is for hosts that"),
        (("--min-np", 1, "-H", "a:1,a:2"), "host a is named twice"),
        (("--host-discovery-script", "x"), "The number of ranks is missing"),
        (("--min-np", 1, "-H", "a", "--host-discovery-script", "x"), "Give one of them"),
        (("--min-np", 1, "--blacklist-cooldown-range", 5, 1), "the shortest and the longest"),
        (
            ("--min-np", 1, "--blacklist-cooldown-range", 1, 5, "--blacklist-hosts"),
            "With --blacklist-hosts no host comes back",
        ),
        (("--nnodes", 2), "--rdzv-endpoint is missing"),
        (("--rdzv-id", "x"), "--rdzv-id needs --nnodes"),
        (("--nnodes", 2, "--spares", 1), "--spares does not go with --nnodes"),
    ],
)
def test_options_that_make_no_sense(words, message):
    with pytest.raises(UsageError) as error:
        elastic(*words)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--min-np", 0), "--min-num-proc: 0 is not a whole number from 1 to 100000"),
        (("--min-np", 1, "--hostfile", "/nowhere"), "The host file cannot be read"),
        (("--elastic-timeout", 0), "--elastic-timeout: 0 is not a number above 0"),
        (("--nnodes", "3:2"), "3:2 is neither a number nor MIN:MAX, such as 1:4"),
        (("--rdzv-endpoint", "a:0"), "a:0 is not HOST:PORT"),
    ],
)
def test_values_that_make_no_sense(words, message, capsys):
    assert message in refused(capsys, "run", *words, "true")


def test_a_script_that_cannot_be_run_is_refused(tmp_path):
    script = tmp_path / "find hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:1\n")
    with pytest.raises(UsageError, match="chmod"):
        elastic("--min-np", 1, "--host-discovery-script", script)
    script.chmod(0o755)
    assert elastic("--min-np", 1, "--host-discovery-script", script).script == f"'{script}'"


def test_hosts_on_which_workers_fail():
    pytest.importorskip("tfring.runtime._native")
    ours = coordinator_options(elastic("-np", 2, "--min-np", 1), 60).hosts
    assert not ours.first_failure_bars and ours.failures == 3
    imports = coordinator_options(elastic("-np", 2, "--min-np", 1, "--horovod"), 60).hosts
    assert not imports.first_failure_bars and imports.failures == 3
    strict = coordinator_options(elastic("-np", 2, "--min-np", 1, "--blacklist-hosts"), 60).hosts
    assert strict.first_failure_bars
    words = ("-np", 2, "--min-np", 1, "--blacklist-cooldown-range", 10, 100)
    cooling = coordinator_options(elastic(*words), 60).hosts
    assert cooling.failures == 1 and cooling.cooling_empties and not cooling.first_failure_bars
    assert (cooling.cool_first, cooling.cool_most) == (20 * 10**9, 100 * 10**9)


@pytest.mark.parametrize(
    ("text", "slots", "expected"),
    [
        ("a:2\n\n b:1 \n", None, [("a", 2), ("b", 1)]),
        ("a\nme@b:3", 4, [("a", 4), ("me@b", 3)]),
        ("[fe80::1]:2\n[fe80::2]", 1, [("fe80::1", 2), ("fe80::2", 1)]),
        ("", None, []),
    ],
)
def test_lines_of_a_discovery_script(text, slots, expected):
    assert parse_hosts_found(text, slots) == expected


@pytest.mark.parametrize(
    "text", ["a", "a:0", "a b", "a:-1", "a:1:2", "-x:1", "a:1\na:2", "a:x", "a:1" + "0" * 30]
)
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(DiscoveryError, match="line "):
        parse_hosts_found(text, None)


def test_what_is_wrong_is_told_once_and_the_hosts_stay():
    found = Discovered(None)
    assert found.take(1, "", "no such cluster\n") == (
        False,
        "the host discovery script failed, there are no hosts yet: it ended with exit code 1: no "
        "such cluster",
    )
    assert found.take(1, "", "no such cluster\n") == (False, "")
    assert found.take(0, "b:1\na:1\n", "") == (True, "")
    assert found.take(None, "", "")[1].endswith(
        "the hosts stay as they are: it did not end in time"
    )
    assert found.take(0, "\n", "")[1].endswith("the hosts stay as they are: it named no hosts")
    assert found.hosts == [("b", 1), ("a", 1)]
    assert found.take(0, "a:1\nb:1\n", "") == (False, "the host discovery script works again")
    # Hosts that stay keep their places, whatever the order of the lines.
    assert found.take(0, "c:1\na:2\n", "") == (True, "")
    assert found.hosts == [("a", 2), ("c", 1)]


def test_a_script_that_hangs_is_ended_and_one_that_runs_at_the_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(discovery, "_EACH_SECONDS", 0.01)
    command = f"[ -e {tmp_path}/slow ] && sleep 300 & wait; touch {tmp_path}/slow; echo a:1"
    found, notes = [], []
    script = discovery.DiscoveryScript(command, None, found.append, notes.append)
    assert wait_until(lambda: notes, 60)
    began = time.monotonic()
    monkeypatch.setattr(discovery, "_LIMIT_SECONDS", 300.0)
    time.sleep(1)
    script.close()
    assert time.monotonic() - began < 60
    assert found == [[("a", 1)]]
    assert notes == [
        "the host discovery script failed, the hosts stay as they are: it did not end in time"
    ]


def test_a_script_ends_with_a_launcher_that_is_killed(tmp_path):
    file = tmp_path / "pids"
    command = f"sleep 300 & echo $$ $! >{file}.part; mv {file}.part {file}; wait"
    code = (
        "import sys, time; from tfring.launch.elastic.discovery import DiscoveryScript; "
        "DiscoveryScript(sys.argv[1], None, print, print); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code, command]) as launcher:
        try:
            assert wait_until(file.exists, 60)
        finally:
            launcher.kill()
    for pid in map(int, file.read_text().split()):
        assert wait_until(lambda pid=pid: not alive(pid), 60)


def test_whatever_fails_is_told_once_and_discovery_goes_on(monkeypatch):
    monkeypatch.setattr(discovery, "_EACH_SECONDS", 0.01)
    found, notes, tries = [], [], []

    def fails(hosts):
        found.append(hosts)
        raise LookupError("planted")

    def run(_):
        tries.append(1)
        if len(tries) < 3:
            raise MemoryError("planted")
        return 0, "a:1", ""

    monkeypatch.setattr(discovery.DiscoveryScript, "_run", run)
    script = discovery.DiscoveryScript("", None, fails, notes.append)
    assert wait_until(lambda: len(tries) > 4, 60)
    script.close()
    assert found == [[("a", 1)]]
    failed = "the host discovery script failed, {}: it ended with exit code 126: {}: planted"
    assert notes == [
        failed.format("there are no hosts yet", "MemoryError"),
        failed.format("the hosts stay as they are", "LookupError"),
        "the host discovery script works again",
    ]


def test_exit_codes_are_the_same_wherever_they_are_said():
    assert SETTINGS["STOPPED_EXIT_CODE"].default == exit_codes.STOPPED
    assert core.membership.EXIT_TRY_AGAIN == exit_codes.DISMISSED
    assert len({exit_codes.STOPPED, exit_codes.DISMISSED, exit_codes.LOST_PEER, 0, 1, 2}) == 6
