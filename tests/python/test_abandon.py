"""Abandoning a generation while another thread is in init."""

from __future__ import annotations

import pytest
from launcher_tools import run_python, write_script

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import sys, threading
    from tfring import world
    from tfring.runtime._native import core

    fails = sys.argv[1] == "fails"
    connect, connecting, go_on, seen = world.connect_job, threading.Event(), threading.Event(), []

    def held_up(*arguments):
        connecting.set()
        go_on.wait()
        if fails:
            raise RuntimeError("no other rank came")
        return connect(*arguments)

    def start():
        try:
            world.init()
        except RuntimeError as error:
            seen.append(str(error))

    world.abandon("before any init")
    assert core.generation_state().number == 0
    world.connect_job = held_up
    starting = threading.Thread(target=start)
    starting.start()
    connecting.wait()
    abandoning = threading.Thread(target=world.abandon, args=("enough",))
    abandoning.start()
    core.abandon("the runtime has nothing to end yet")
    go_on.set()
    starting.join()
    abandoning.join()
    state = core.generation_state()
    assert seen == (["no other rank came"] if fails else []), seen
    assert (state.phase.name, state.number) == ("down", 0 if fails else 1), state
    assert ("enough" in state.error) is not fails, state
    world.connect_job = connect
    world.init()
    assert core.generation_state().phase.name == "up" and core.size() == 1
    print("right")
"""


@pytest.mark.parametrize("ending", ["works", "fails"])
def test_abandon_waits_for_an_init_that_is_under_way(tmp_path, ending):
    done = run_python(write_script(tmp_path, SCRIPT), ending)
    assert done.stdout == "right\n", done.stderr
