"""Planted faults: ranks that end, stop or fail."""

from __future__ import annotations

import signal
import sys
import time

import numpy as np
from planted_cases import FOREVER, SUM, Rank, case, core

from tfring import world

# Processes that end or stop.


@case(3, "KILLED", 1, signals={1: signal.SIGKILL})
@case(3, "KILLED", 0, signals={0: signal.SIGKILL}, name="killed_rank_0")
def killed_between_calls(r: Rank) -> None:
    r.steps()
    r.at_fault()
    r.on_forever(lambda: 0.05)


@case(3, "KILLED", 1, signals={1: signal.SIGKILL})
def killed_while_waiting(r: Rank) -> None:
    r.steps()
    if r.rank == 1:
        r.at_fault()
        r.loss()
    r.at_fault()
    time.sleep(FOREVER)


@case(3, "KILLED", 2, signals={2: signal.SIGKILL})
def killed_while_data_moves(r: Rank) -> None:
    r.steps()
    r.at_fault()
    big = np.ones(1 << 22, np.float32)
    while True:
        core.allreduce(big, name="big", op=SUM)


@case(3, "KILLED", 0, 1, 2, signals=dict.fromkeys(range(3), signal.SIGKILL), wait=0.7)
def all_killed(r: Rank) -> None:
    r.steps()
    r.at_fault()
    r.on_forever()


@case(3, "OTHER_ORDER", 1, signals=dict.fromkeys(range(3), signal.SIGKILL), wait=0.7)
def all_killed_in_a_hang(r: Rank) -> None:
    r.steps()
    r.at_fault()
    for call in (r.grad, r.loss) if r.rank == 1 else (r.loss, r.grad):
        call()


@case(3, "LEFT", 1)
def sys_exit(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 1:
        sys.exit(3)
    r.steps()


@case(3, "LEFT", 2)
def shutdown_on_one_rank(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 2:
        world.shutdown()
        time.sleep(FOREVER)
    r.steps()


@case(3, "STOPPED", 1, signals={1: signal.SIGSTOP}, says=("kill -CONT",))
@case(3, "STOPPED", 0, signals={0: signal.SIGSTOP}, name="stopped_rank_0")
@case(2, "STOPPED", 0, 1, signals=dict.fromkeys(range(2), signal.SIGSTOP), name="all_stopped")
def stopped_between_calls(r: Rank) -> None:
    r.steps()
    r.at_fault()
    r.on_forever()


@case(4, "STOPPED", 3, signals={3: signal.SIGSTOP})
def stopped_while_data_moves(r: Rank) -> None:
    r.steps()
    r.at_fault()
    big = np.ones(1 << 22, np.float32)
    while True:
        core.allreduce(big, name="big", op=SUM)


@case(4, "STOPPED", 3, signals={3: signal.SIGSTOP}, says=("'validation'",))
def stopped_and_another_in_another_branch(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 3:
        time.sleep(FOREVER)
    core.allreduce(r.big, name="validation" if r.rank == 1 else "train", op=SUM)


# Exceptions.


@case(3, "EXCEPTION", 1, says=("ValueError: bad batch",))
def exception(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 1:
        raise ValueError("bad batch")
    r.steps()


@case(3, "EXCEPTION", 0, says=("KeyError",))
def exception_on_rank_0(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 0:
        raise KeyError("label")
    r.steps()


@case(3, "EXCEPTION", 2, says=("loss is NaN",))
def failed_step(r: Rank) -> None:
    r.steps()
    run = core.begin_run()
    r.at_fault()
    if r.rank == 2:
        core.fail_run(run, "ValueError: loss is NaN")
        time.sleep(FOREVER)
    r.steps()
