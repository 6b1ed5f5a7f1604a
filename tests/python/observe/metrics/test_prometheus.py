"""Prometheus itself scrapes a job that runs, and answers queries about both of its ranks."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import LIMIT_SECONDS, REPORT, ROOT, start, wait_until, write_script

from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.reader import RecordError

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (of Debian's package)"
)

CALLS, BYTES, LATE = 50, 4000, 0.01
SCRIPT = f"""
import pathlib, time
import numpy as np
import tfring
from tfring.runtime._native import core

tfring.init()
for _ in range({CALLS}):
    if core.rank() == 1:
        time.sleep({LATE})
    core.allreduce(np.ones({BYTES // 8}), name="x", op=1)
report(f"done.{{core.rank()}}", "")
if core.rank() == 1:
    while not pathlib.Path(sys.argv[1], "stop").exists():
        time.sleep(0.05)
core.barrier(name="end")  # rank 0 waits here for rank 1
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """A job of two ranks: both have made their calls, and one waits for the other until the end."""
    token = tmp_path / "token"
    token.write_text("a token\n")
    token.chmod(0o600)
    script = write_script(tmp_path, SCRIPT, header=REPORT)
    settings = {
        "TFRING_RECORD_DIR": str(tmp_path / "records"),
        "TFRING_METRICS_PORT": "0",
        "TFRING_METRICS_TOKEN_FILE": str(token),
    }
    process = start("-np", 2, "python", script, tmp_path, **settings)
    try:
        ready = wait_until(lambda: len(list(tmp_path.glob("done.*"))) == 2, 60)
        assert ready, process.communicate(timeout=LIMIT_SECONDS)
        yield tmp_path
    finally:
        (tmp_path / "stop").touch()
        try:
            output = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()
    assert process.returncode == 0, output


def targets(records: Path) -> list[str]:
    """Where the ranks have their endpoints, as their records say."""
    with contextlib.suppress(RecordError):
        ranks = load_job([records]).records.values()
        marks = [e.text for rank in ranks for e in rank.events if e.type is EventType.MARK]
        return [found[1] for mark in marks if (found := re.search("http://(.*)/metrics", mark))]
    return []


@contextlib.contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Runs Prometheus; the address of its HTTP API."""
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    log = folder / "prometheus.log"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        pattern = re.compile(r'Listening on" address=(127\.0\.0\.1:\d+)')
        assert wait_until(lambda: pattern.search(log.read_text()) is not None, 60), log.read_text()
        found = pattern.search(log.read_text())
        assert found is not None
        assert wait_until(lambda: is_ready(found[1]), 60), log.read_text()
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


def is_ready(api: str) -> bool:
    """Whether Prometheus can be asked."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{api}/-/ready", timeout=30):
        return True
    return False


def query(api: str, text: str) -> dict[str, float]:
    """The present values of an expression, by rank."""
    return {s["metric"]["rank"]: float(s["value"][1]) for s in evaluate(api, text)}


def panel_queries() -> list[str]:
    """The expressions of the dashboard's panels, with values for its variables."""
    dashboard = json.loads((ROOT / "docs/grafana/tfring.json").read_text("utf-8"))
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = {"$instance": ".*", "$rank": ".*", "$__rate_interval": "1m"}
    for name, value in variables.items():
        texts = [text.replace(name, value) for text in texts]
    return texts


def evaluate(api: str, text: str) -> list[Any]:
    """The series that an expression gives."""
    where = f"http://{api}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    with urllib.request.urlopen(where, timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def understood(api: str, text: str) -> bool:
    """Whether an expression is valid, and its parts fit together."""
    try:
        evaluate(api, text)
    except urllib.error.HTTPError:
        return False
    return True


def test_prometheus_scrapes_a_running_job(job: Path) -> None:
    endpoints = targets(job / "records")
    assert len(endpoints) == 2
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "tfring",
                "authorization": {"credentials_file": str(job / "token")},
                "static_configs": [{"targets": endpoints}],
            }
        ],
    }
    with prometheus(job, config) as api:
        calls = {"0": float(CALLS), "1": float(CALLS)}
        assert wait_until(lambda: query(api, "tfring_calls_total") == calls, 60)
        assert query(api, "tfring_tensor_bytes_total") == {
            rank: CALLS * float(BYTES) for rank in calls
        }
        ended = 'tfring_collective_duration_seconds_count{kind="allreduce"}'
        assert query(api, ended) == calls
        assert all(
            sent > CALLS * BYTES / 2 for sent in query(api, "tfring_sent_bytes_total").values()
        )
        waited = query(api, "tfring_waiting_for_rank_seconds_total")
        lateness = load_job([job / "records"]).records[0].ranks["late"]
        assert waited == pytest.approx({str(r): late * 1e-9 for r, late in enumerate(lateness)})
        assert waited["1"] > 0
        assert query(api, "tfring_job_info * on (rank) tfring_job_ranks") == {"0": 2.0, "1": 2.0}
        assert query(api, "tfring_open_calls") == {"0": 1.0, "1": 0.0}
        assert query(api, "tfring_oldest_open_call_age_seconds > 0").keys() == {"0"}
        wrong = [text for text in panel_queries() if not understood(api, text)]
        assert wrong == []
        assert evaluate(api, panel_queries()[0])[0]["value"][1] == "2"
