"""`tfring report` and `tfring run --report`: what users see."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher_tools import LIMIT_SECONDS, environment, run, write_script
from made_records import NOBODY, write_record, write_training

from tfring.launch.cli import main
from tfring.observe.recorder.layout import EventType

JOB = """
    import numpy as np
    import tfring
    tfring.init()
    from tfring.runtime._native import core
    for step in range(5):
        core.allgather(np.ones(1000, np.float32), name="x")
    core.mark("half way")
    if "fail" in __import__("sys").argv:
        raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of three ranks, of which the last becomes slow in step 101."""
    own = 20 * np.random.default_rng(1).lognormal(0, 0.05, (3, 300))
    own[2, 100:] += 10
    return write_training(tmp_path_factory.mktemp("job"), own)


def test_the_report_says_where_the_time_goes(folder: Path, capsys: Any) -> None:
    assert main(["report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\): \d\d\.\d% own work, \d+\.\d% exchange \(of it \d+\.\d% waiting", text)
    assert "The others waited longest for rank 2 (here)" in text
    assert re.search(r"Rank 2 has become slow since step (99|10[0-5]): [\d.]+ ms more", text)
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d+ +here", line)]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    waited = [float(row[-1]) for row in rows]
    assert max(waited) == waited[2]
    for inside in ("locked", "overlapped", "calls/plan"):
        assert inside not in text


def test_the_inside_of_the_runtime_is_shown_to_those_who_ask(tmp_path: Path, capsys: Any) -> None:
    unlock = {"number": 1, "type": EventType.UNLOCK, "time": 5, "text": "the lock ended"}
    note = {"number": 2, "type": EventType.MARK, "time": 6, "text": "metrics at http://here"}
    for rank in range(2):
        path = tmp_path / f"rank-{rank}.record"
        write_record(path, rank, 2, events=[unlock, note], locks=4, lock_rounds=99)
    sentence = "The schedule was locked 4 times, for 99 rounds in all. Last recorded: the lock"
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "locked" not in text and "metrics at" not in text
    assert main(["report", str(tmp_path), "--internals"]) == 0
    text = capsys.readouterr().out
    assert (
        sentence in text
        and "metrics at http://here" in text
        and "overlapped" in text
        and "calls/plan" in text
    )


def test_fit_says_how_far_it_is_and_where_its_own_work_goes(tmp_path: Path, capsys: Any) -> None:
    fit = {"epoch": 2, "epochs": 3, "step": 20, "has_loss": 1}
    spent = {"input_time": 20 * 4_000_000, "callback_time": 20 * 1_000_000}
    folder = write_training(tmp_path, np.full((2, 20), 10.0), loss=0.25, **fit, **spent)
    assert main(["report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Epoch 2 of 3, step 20: loss 0.25.\n" in text
    shares = re.search(r"own work \(of it ([\d.]+)% input and ([\d.]+)% callbacks\)", text)
    assert shares and float(shares[1]) == pytest.approx(4 * float(shares[2]), abs=0.3)
    names = next(line.split() for line in text.splitlines() if line.startswith(" rank"))
    assert names[3:] == ["own", "work", "input", "callbacks", "exchange", "waiting", "awaited"]
    row = next(line.split() for line in text.splitlines() if re.match(r" +0 +here", line))
    assert row[4:6] == ["4.00", "1.00"]


@pytest.mark.parametrize("why", ["; its callbacks take 5 ms.", "."])
def test_what_keeps_the_slowest_rank_is_named(tmp_path: Path, capsys: Any, why: str) -> None:
    own = np.full((2, 20), 10.0)
    own[1] += 5
    spent = {"callback_time": 20 * 5_000_000, "input_time": 20 * 2_000_000} if "its" in why else {}
    folder = write_training(tmp_path, own, epoch=1, epochs=1, step=20, **spent)
    assert main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"The others waited longest for rank 1 (here): 5 ms per step{why}" in shown


def test_what_is_wrong_comes_first(tmp_path: Path, capsys: Any) -> None:
    for rank in range(2):
        write_record(tmp_path / f"rank-{rank}.record", rank, 2, pid=os.getpid() if rank else NOBODY)
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Rank 0 (host host, process 4194304) is gone: its")
    pytest.importorskip("matplotlib")
    file = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--html", str(file)]) == 0
    text = file.read_text("utf-8")
    verdict = text.index('<p class="verdict">Rank 0 (host host, process 4194304) is gone')
    assert text.index("<h1>") < verdict < text.index("<pre>")


def test_the_newest_lines_of_the_program_are_in_it(tmp_path: Path, capsys: Any) -> None:
    for rank in range(2):
        events = [
            {"number": n, "type": EventType.MARK, "time": 2 * n + rank, "text": f"said {n}"}
            for n in range(1, 16)
        ]
        write_record(tmp_path / f"rank-{rank}.record", rank, 2, events=events)
    assert main(["report", str(tmp_path)]) == 0
    said = re.findall(r"^Rank (\d) noted: said (\d+)$", capsys.readouterr().out, re.M)
    assert said == [(str(rank), str(n)) for n in range(6, 16) for rank in range(2)]


# Hosts may have any name, and records come from anywhere.
MARKUP = ['[link=//e.vil"><h1>]x[/]', "[/evil]", "<b>&amp;</b> [red]x"]


@pytest.mark.parametrize("host", MARKUP)
def test_texts_of_a_record_are_no_markup(tmp_path: Path, capsys: Any, host: str) -> None:
    mark = {"number": 1, "type": EventType.MARK, "time": 5, "text": host}
    call = {"number": 1, "name": host, "call_site": host, "submitted": 1}
    for rank in range(2):
        path = tmp_path / f"rank-{rank}.record"
        write_record(path, rank, 2, calls=[call], events=[mark], host=host)
    for command in (["report"], ["explain"], ["top", "--once", "-n", "0.05"]):
        assert main([*command, str(tmp_path)]) == 0
        shown = "".join(capsys.readouterr().out.split())
        # In a report they are in its table, and in what the program has noted.
        assert shown.count("".join(host.split())) >= (4 if command == ["report"] else 1), command


@pytest.mark.parametrize("host", MARKUP)
def test_texts_of_a_record_are_escaped_in_a_page(tmp_path: Path, host: str) -> None:
    pytest.importorskip("matplotlib")
    own = np.full((2, 20), 10.0)
    own[1] += 5
    folder = write_training(tmp_path / "job", own, host=host)
    file = tmp_path / "page.html"
    assert main(["report", str(folder), "--html", str(file)]) == 0
    text = file.read_text("utf-8")
    parsed = Page(text)
    assert parsed.open == [] and parsed.loaded == [] and parsed.tags == PLAIN_TAGS | {"svg"}
    assert f"rank 1 ({html.escape(host)})" in text


def test_no_record_is_an_error_that_says_so(tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "there is no record" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_run_report_prints_it_when_the_job_is_over(tmp_path: Path, fails: bool) -> None:
    script = write_script(tmp_path, JOB)
    ended = run("-np", 2, "--report", sys.executable, script, *(["fail"] if fails else []))
    assert ended.returncode == (3 if fails else 0), ended.stderr
    assert re.search(r"Job \w+: 2 ranks\n", ended.stderr)
    assert "Rank 1 noted: half way" in ended.stderr
    assert "Time per step" in ended.stderr


def test_run_report_refuses_other_hosts_without_a_common_folder(capsys: Any) -> None:
    hosts = ["-H", "a.invalid:1,b.invalid:1"]
    assert main(["run", "-np", "2", *hosts, "--report", "true"]) == 2
    assert "needs TFRING_RECORD_DIR" in capsys.readouterr().err


# What the page has besides its pictures.
PLAIN_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "p", "pre", "span"),
    *("figure", "figcaption"),
}


class Page(HTMLParser):
    """Checks what an XML parser would: every element that is opened is closed."""

    EMPTY = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if "svg" not in self.open:
            self.tags.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.loaded.append(value)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that job."""
    pytest.importorskip("matplotlib")
    path = tmp_path_factory.mktemp("page") / "page.html"
    assert main(["report", str(folder), "--html", str(path)]) == 0
    return path


def test_the_page_needs_nothing_else(page: Path) -> None:
    parsed = Page(page.read_text("utf-8"))
    assert parsed.open == [] and parsed.loaded == []
    assert len(parsed.ids) == len(set(parsed.ids)), "ids of different pictures are equal"
    assert {"steps", "own", "waits", "extract", "traffic"} <= set(parsed.ids)
    assert page.stat().st_size < 1_000_000


def browser() -> str | None:
    """A browser that can print pages without a window."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def test_a_browser_shows_the_pictures(page: Path, tmp_path: Path) -> None:
    """It says how large each picture has become, and draws them in a screenshot."""
    program = browser()
    if program is None:
        pytest.skip("needs chromium, chromium-browser or google-chrome")
    # The page allows no scripts: a copy without that rule has one that measures the pictures.
    text = page.read_text("utf-8")
    script = """<script>
        const measured = [...document.querySelectorAll("figure")].map(figure => {
            const box = figure.querySelector("svg").getBoundingClientRect();
            return [figure.id, box.width, box.height, figure.querySelectorAll("text").length];
        });
        document.title = JSON.stringify(measured);
        </script></body>"""
    rule = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert rule.search(text)
    copy = tmp_path / "copy.html"
    copy.write_text(rule.sub("", text).replace("</body>", script), "utf-8")
    shown = browse(program, tmp_path, "--dump-dom", copy.as_uri())
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title is not None, shown[:500]
    pictures = json.loads(title[1])
    assert [one[0] for one in pictures] == ["steps", "own", "waits", "extract", "traffic"]
    for name, width, height, texts in pictures:
        assert width > 500 and height > 100 and texts > 3, name
    file = tmp_path / "page.png"
    browse(program, tmp_path, f"--screenshot={file}", "--window-size=1100,2600", page.as_uri())
    pixels = png_colors(file)
    assert {(0xE6, 0x9F, 0x00), (0x99, 0x99, 0x99), (0x00, 0x72, 0xB2)} <= pixels


def browse(program: str, folder: Path, *arguments: str) -> str:
    """Runs the browser and returns what it prints; ends its processes, too."""
    profile = f"--user-data-dir={folder}/profile"
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", profile, *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_SECONDS)[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def png_colors(file: Path) -> set[tuple[int, ...]]:
    """The colours in a picture."""
    image = pytest.importorskip("PIL.Image").open(file).convert("RGB")
    colors = image.getcolors(1 << 24)
    return {color for count, color in colors if count > 100}
