"""What tfring logs in Python comes out of the runtime's log, in one format."""

import json
import re
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone

from tests.helpers.launcher_tools import environment, run_python, write_script

START = """
import logging, os, sys
import tfring
from tfring.runtime import _native

log = logging.getLogger("tfring")
tfring.init()
"""
HOST = re.escape(socket.gethostname())
TIME = r"\d\d:\d\d:\d\d\.\d{3}Z"


def logged(folder, text, **settings):
    """The lines on stderr of a job of one rank."""
    job = run_python(write_script(folder, text, header=START), **settings)
    assert job.returncode == 0, job.stderr
    return job.stderr.splitlines()


def test_lines_of_both_languages_look_alike_and_stay_in_order(tmp_path):
    lines = logged(
        tmp_path,
        """
        log.warning("from %s", "Python")
        _native.core.log(3, "from C++", "x.cc", 1)
        log.info("as the runtime's default")
        log.debug("not shown")
        try:
            raise KeyError("lost")
        except KeyError:
            log.exception("failed")
        """,
        TFRING_FOO="1",
    )
    front = rf"\[tfring\] {TIME} rank 0 \(host {HOST}\) "
    wanted = [
        rf"\[tfring\] {TIME} warning: the variable TFRING_FOO is unknown.*",  # before init
        front + "warning: from Python",
        front + r"warning: from C\+\+",
        front + "info: as the runtime's default",
        front + "error: failed",
        r"Traceback \(most recent call last\):",
    ]
    assert len(lines) > len(wanted) and lines[-1] == "KeyError: 'lost'"
    for pattern, line in zip(wanted, lines, strict=False):
        assert re.fullmatch(pattern, line), line


def test_json_is_json(tmp_path):
    lines = logged(
        tmp_path,
        r"""
        texts = ['quotes " and \\', "lines\nand\ttabs \x00\x1b[31m\x7f", "ü☃🎉", "bad \udcff"]
        for text in texts:
            log.warning("%s", text)
        _native.core.log(4, bytes(range(1, 256)), "a/b.cc", 7)
        """,
        TFRING_LOG_FORMAT="json",
        TFRING_LOG_LEVEL="debug",
    )
    parsed = [json.loads(line) for line in lines]
    mine = [one for one in parsed if one["level"] in ("warning", "error")]
    assert [one["text"] for one in mine[:-1]] == [
        'quotes " and \\',
        "lines\nand\ttabs \x00\x1b[31m\x7f",
        "ü☃🎉",
        "bad \\udcff",
    ]
    assert mine[-1]["text"] == bytes(range(1, 128)).decode() + "\N{REPLACEMENT CHARACTER}" * 128
    assert mine[-1]["source"] == "b.cc:7"
    for one in mine:
        assert (one["rank"], one["size"], one["host"]) == (0, 1, socket.gethostname())
        assert set(one) == {"time", "level", "rank", "size", "host", "pid", "text", "source"}
        time = datetime.strptime(one["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        assert abs(datetime.now(timezone.utc) - time) < timedelta(hours=1)


def test_time_can_be_hidden_as_in_horovod(tmp_path):
    lines = logged(tmp_path, "log.warning('x')", HOROVOD_LOG_HIDE_TIME="1")
    assert lines == [f"[tfring] rank 0 (host {socket.gethostname()}) warning: x"]


def test_what_is_left_out_is_told_when_the_process_ends(tmp_path):
    text = "for i in range(9): log.warning('step %d is slow', i)"
    lines = logged(tmp_path, text, TFRING_X_LOG_REPEATS="2")
    texts = [line.partition("warning: ")[2] for line in lines]
    last = "step 8 is slow (6 more like this are left out)"
    assert texts == ["step 0 is slow", "step 1 is slow", last]


def test_an_application_that_has_set_up_logging_gets_the_lines(tmp_path):
    script = write_script(
        tmp_path,
        """
        logging.basicConfig(format="app: %(message)s")
        log.warning("x")
        """,
        header=START,
    )
    assert run_python(script).stderr == "app: x\n"


def test_a_level_that_the_program_chose_stays(tmp_path):
    script = write_script(
        tmp_path,
        """
        import logging
        import tfring

        log = logging.getLogger("tfring")
        log.setLevel(logging.ERROR)
        tfring.init()
        log.warning("x")
        """,
    )
    assert run_python(script).stderr == ""


def test_nobody_waits_for_a_stderr_that_nobody_reads(tmp_path):
    script = write_script(
        tmp_path,
        """
        for i in range(20000):
            log.warning("%d %s", i, "." * 100)
        print("done", flush=True)
        sys.stdin.read()
        """,
        header=START,
    )
    job = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TFRING_X_LOG_REPEATS="0", TFRING_X_LOG_HIDE_TIME="1"),
    )
    try:
        assert job.stdout.readline() == "done\n"  # nothing of stderr is read so far
        _, text = job.communicate(timeout=60)
    finally:
        job.kill()
    missing = sum(int(n) for n in re.findall(r"warning: (\d+) lines of the log are missing", text))
    assert missing > 0 and len(re.findall(r"warning: \d+ \.{100}\n", text)) + missing == 20000
