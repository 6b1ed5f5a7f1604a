"""The endpoint for Prometheus in a job of one rank: what it says and who may read it."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher_tools import ROOT, wait_until

import tfring
from tfring.observe.metrics import endpoint as own
from tfring.observe.metrics.families import FAMILIES
from tfring.runtime._native import core
from tfring.runtime.settings.setting import SettingError

pytest.importorskip("prometheus_client")
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

SUM = 1
Key = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment of an init with an endpoint; shuts down at the end."""
    monkeypatch.setenv("TFRING_METRICS_PORT", "0")
    yield monkeypatch
    tfring.shutdown()


def url() -> str:
    endpoint = own._state.endpoint
    assert endpoint is not None
    return endpoint.url


def scrape(token: str = "", accept: str = "text/plain", at: str = "") -> str:
    headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(at or url(), headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[Key, float]:
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k != "rank")): (
            sample.value
        )
        for family in parse(text)
        for sample in family.samples
    }


def value(found: dict[Key, float], name: str, **labels: str) -> float:
    return found[f"tfring_{name}", frozenset(labels.items())]


def work(count: int, elements: int = 4) -> None:
    for number in range(count):
        core.allreduce(np.ones(elements), name=f"metrics.{number % 3}", op=SUM)


def test_a_scrape_says_what_was_done(job: pytest.MonkeyPatch) -> None:
    del job
    tfring.init()
    work(5)
    core.broadcast(np.ones(3), name="metrics.b", root=0)
    found = samples(scrape())
    assert value(found, "calls_total") == 6
    assert value(found, "tensor_bytes_total") == 5 * 32 + 24
    assert value(found, "open_calls") == 0
    assert value(found, "collective_duration_seconds_count", kind="allreduce") == 5
    assert value(found, "collective_duration_seconds_count", kind="broadcast") == 1
    assert value(found, "plan_size_bytes_bucket", le="256.0") == 6
    assert value(found, "events_total", type="init") == 1
    assert 0 < value(found, "collective_duration_seconds_sum", kind="allreduce") < 60
    work(4)
    core.mark_step(7, samples=64, input_nanoseconds=1_500_000_000)
    core.mark_fit(2, 5, 40, 0.25, 500_000_000)
    text = scrape()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert names[:4] == [f"tfring_{name}" for name in ("steps_total", "epoch", "epochs", "loss")]
    found = samples(text)
    assert (value(found, "epoch"), value(found, "epochs")) == (2, 5)
    assert value(found, "loss") == 0.25
    assert value(found, "callback_seconds_total") == pytest.approx(0.5)
    assert value(found, "collective_duration_seconds_count", kind="allreduce") == 9
    assert value(found, "steps_total") == 7
    assert value(found, "samples_total") == 64
    assert value(found, "input_wait_seconds_total") == pytest.approx(1.5)
    assert value(found, "plans_total") == core.counters()["plans"] == 10


def test_what_the_record_lost_between_scrapes_is_counted(job: pytest.MonkeyPatch) -> None:
    del job
    tfring.init()
    scrape()
    work(9000, elements=1)
    found = samples(scrape())
    assert value(found, "calls_total") == 9000
    seen = value(found, "collective_duration_seconds_count", kind="allreduce")
    assert 8000 < seen <= 8192
    assert value(found, "unseen_calls_total") == 9000 - seen


def test_names_follow_openmetrics_and_are_documented(job: pytest.MonkeyPatch) -> None:
    """The parser refuses wrong names and types; promtool finds what is not usual, too."""
    del job
    tfring.init()
    work(2)
    text = scrape(accept="application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(text)}
    short = {re.sub("_(total|info)$", "", name): name for name in FAMILIES}
    assert set(short) <= names  # also what nothing has been counted of
    page = (ROOT / "docs/metrics.md").read_text("utf-8")
    assert set(re.findall(r"`(tfring_\w+)", page)) == set(FAMILIES)
    if promtool := shutil.which("promtool"):
        command = [promtool, "check", "metrics"]
        done = subprocess.run(command, input=scrape(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_panels_ask_for_what_there_is() -> None:
    text = (ROOT / "docs/grafana/tfring.json").read_text("utf-8")
    dashboard = json.loads(text)
    targets = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    targets += [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    used = {name for target in targets for name in re.findall(r"\b(?:tfring|process)_\w+", target)}
    known = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
    for family in FAMILIES.values():
        ends = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        known |= {family.name + end for end in ends}
    assert len(targets) > 10
    assert used - known == set()
    assert not re.search(r"https?:|localhost|\d+\.\d+\.\d+\.\d+", text)


def test_only_who_has_the_token_may_read(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right\n")
    file.chmod(0o600)
    job.setenv("TFRING_METRICS_TOKEN_FILE", str(file))
    job.setenv("TFRING_METRICS_ADDR", "0.0.0.0")
    tfring.init()
    here = url().replace("0.0.0.0", "127.0.0.1")
    assert "tfring_calls_total" in scrape("right", at=here)
    for token in ("", "wrong", "rightx"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(token, at=here)


def test_other_hosts_need_a_token(job: pytest.MonkeyPatch) -> None:
    job.setenv("TFRING_METRICS_ADDR", "0.0.0.0")
    with pytest.raises(SettingError, match="TFRING_METRICS_TOKEN_FILE"):
        tfring.init()
    assert not tfring.is_initialized()
    job.setenv("TFRING_METRICS_ADDR", "localhost")
    with pytest.raises(SettingError, match="IP address"):
        tfring.init()


def test_what_cannot_be_opened_is_a_warning(
    job: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job.setenv("TFRING_METRICS_PORT", str(taken.getsockname()[1]))
        with caplog.at_level(logging.WARNING, "tfring"):
            tfring.init()
    assert "rank 0 has no endpoint" in caplog.text
    assert "TFRING_METRICS_PORT" in caplog.text
    work(1)
    tfring.shutdown()
    job.setenv("TFRING_METRICS_TOKEN_FILE", str(tmp_path / "none"))
    with caplog.at_level(logging.WARNING, "tfring"):
        tfring.init()
    assert "TFRING_METRICS_TOKEN_FILE" in caplog.text
    assert own._state.endpoint is None


def test_without_a_record_there_are_counters(job: pytest.MonkeyPatch) -> None:
    job.setenv("TFRING_RECORD", "0")
    tfring.init()
    work(3)
    found = samples(scrape())
    assert value(found, "plans_total") == 3
    assert ("tfring_calls_total", frozenset()) not in found


def test_the_port_ends_with_the_job_and_not_with_forked_children(job: pytest.MonkeyPatch) -> None:
    """A child that is forked while the port is open lives on, and does not keep it."""
    tfring.init()
    first = url()
    port = first.rpartition(":")[2].partition("/")[0]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        assert "tfring_calls_total" in scrape()
        tfring.shutdown()
        with pytest.raises(urllib.error.URLError):
            scrape(at=first)
        job.setenv("TFRING_METRICS_PORT", port)
        tfring.init()
        work(2)
        assert url() == first
        assert value(samples(scrape()), "calls_total") == 2
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(child, 0)


def test_scrapes_at_the_same_time_and_silent_clients(job: pytest.MonkeyPatch) -> None:
    del job
    tfring.init()
    work(3)
    host, port = url().removeprefix("http://").partition("/")[0].split(":")
    results: list[Any] = []
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))):
        threads = [threading.Thread(target=lambda: results.append(scrape())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    counts = [value(samples(text), "calls_total") for text in results]
    assert counts == [3, 3, 3]


def test_clients_that_say_nothing_keep_nobody_out(job: pytest.MonkeyPatch) -> None:
    """They take all connections: a scrape replaces one of them."""
    del job
    tfring.init()
    with contextlib.ExitStack() as silent:
        clients = [silent.enter_context(connected()) for _ in range(own._MAX_REQUESTS)]
        for number in range(own._MAX_REQUESTS):
            assert "tfring_calls_total" in scrape(), number
        for client in clients:
            client.settimeout(0.0)
        assert any(ended(client) for client in clients)


def test_a_request_has_to_come_in_time_as_a_whole(job: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then does not keep its place."""
    job.setattr(own, "_REQUEST_SECONDS", 0.5)
    tfring.init()
    with connected() as slow:
        slow.settimeout(0.05)

        def sends_until_it_is_ended() -> bool:
            try:
                slow.send(b"G")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert wait_until(sends_until_it_is_ended)


def test_a_head_without_an_end_is_refused(job: pytest.MonkeyPatch) -> None:
    del job
    tfring.init()
    with connected() as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET /metrics HTTP/1.0\r\nx: " + b"x" * (4 * own._MAX_HEAD))
        assert b"tfring_calls_total" not in client.recv(1 << 16)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "[", "127.0.0.1.evil"])
def test_who_comes_by_a_name_gets_nothing(job: pytest.MonkeyPatch, host: str) -> None:
    """A web page could have its own name lead here; with a token it could read nothing."""
    del job
    tfring.init()
    request = urllib.request.Request(url(), headers={"Host": host})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(request, timeout=30)
    port = url().rpartition(":")[2].partition("/")[0]
    assert "tfring_calls_total" in scrape(at=f"http://localhost:{port}/metrics")


def test_without_a_descriptor_it_pauses_and_goes_on(job: pytest.MonkeyPatch) -> None:
    tfring.init()
    real, pauses = own.time.sleep, list[float]()
    accept = socket.socket.accept

    def none_left(listener: socket.socket) -> Any:
        if len(pauses) < 3:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listener)

    def note(seconds: float) -> None:
        pauses.append(seconds)
        real(0)

    with job.context() as patched:
        patched.setattr(socket.socket, "accept", none_left)
        patched.setattr(own.time, "sleep", note)
        assert "tfring_calls_total" in scrape()
    assert pauses[:3] == [own._PAUSE_SECONDS] * 3


def connected() -> socket.socket:
    host, port = url().removeprefix("http://").partition("/")[0].split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
