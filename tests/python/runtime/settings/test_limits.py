"""The table of limits in docs/failures.md says what counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfring.elastic.process import CONNECT_SECONDS, with_heartbeats
from tfring.job.store.tcp_store import DEFAULT_LEASE, DEFAULT_LOST_AFTER
from tfring.launch.agents.host import AGENT_TIMEOUT_SECONDS, ELASTIC_TIMEOUT_SECONDS
from tfring.launch.elastic.options import ELASTIC_SECONDS
from tfring.launch.options.job_options import STOP_SECONDS
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.settings.table import SETTINGS
from tfring.runtime.ssh import SshOptions

ELASTIC_HEARTBEAT = float(with_heartbeats(read_settings({})).runtime["HEARTBEAT_TIMEOUT_SECONDS"])
PAGE = Path(__file__).resolve().parents[4] / "docs/failures.md"


def rows():
    section = PAGE.read_text("utf-8").split("## Who waits how long\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line] for line in lines[2:]]


def test_limits_of_settings():
    of_settings = [
        row for row in rows() if row[3].startswith("TFRING_") and "of an elastic" not in row[0]
    ]
    assert len(of_settings) == 6
    for _, _, seconds, variable, _ in of_settings:
        assert SETTINGS[variable.removeprefix("TFRING_")].shown_default == seconds


@pytest.mark.parametrize(
    "words,seconds",
    [
        ("many ranks as", ELASTIC_SECONDS),
        ("connections of a new generation", CONNECT_SECONDS),
        ("host of a static job", AGENT_TIMEOUT_SECONDS),
        ("same in an elastic job", ELASTIC_TIMEOUT_SECONDS),
        ("server that cannot be reached", DEFAULT_LOST_AFTER),
        ("connection is gone", DEFAULT_LEASE),
        ("told to stop", STOP_SECONDS),
        ("sign of life of another rank", ELASTIC_HEARTBEAT),
        ("launcher vouches", ELASTIC_SECONDS),
        ("ssh that connects", SshOptions.connect_seconds),
    ],
)
def test_other_limits(words, seconds):
    (found,) = [row for row in rows() if words in row[1]]
    assert float(found[2]) == seconds


def test_what_watches_hosts_is_no_stricter_than_what_watches_ranks():
    assert SETTINGS["HEARTBEAT_TIMEOUT_SECONDS"].default >= 60
    assert SETTINGS["HEARTBEAT_TIMEOUT_SECONDS"].default <= AGENT_TIMEOUT_SECONDS
