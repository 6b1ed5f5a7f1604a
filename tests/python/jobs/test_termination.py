"""SIGTERM is a request during watched work; otherwise it has its previous effect."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launcher_tools import run_python, write_script

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import os, signal, sys
    from tfring.runtime.signals.termination import TerminationRequest

    def work(fails):
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(request.requested)
        if fails:
            raise ValueError

    def in_work(frame):
        while frame is not None and frame.f_code is not work.__code__:
            frame = frame.f_back
        return frame is not None

    seen = []
    request = TerminationRequest(in_work)
    assert request.watch()
    work(False)
    request.requested = False
    try:
        work(True)
    except ValueError:
        pass
    assert seen == [True, True]
    if sys.argv[1] == "unwatch":
        request.unwatch()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert not request.watch(), "a job that ignores it goes on ignoring it"
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        assert not request.watch(), "a handler of the program's own stays"
    print("before", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("after")
"""


@pytest.mark.parametrize("how, code", [("stays", -signal.SIGTERM), ("unwatch", 3)])
def test_a_signal_outside_of_what_is_watched(tmp_path: Path, how: str, code: int) -> None:
    done = run_python(write_script(tmp_path, SCRIPT), how)
    assert done.returncode == code, done.stderr
    assert done.stdout == "before\n"
