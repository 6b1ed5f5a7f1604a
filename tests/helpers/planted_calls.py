"""Planted faults: ranks whose calls or values differ from those of the others."""

from __future__ import annotations

import time

import numpy as np
from planted_cases import SUM, Rank, case, core

from tfring.runtime import _native

# Different calls.


@case(2, "OTHER_ORDER", 1)
def other_order(r: Rank) -> None:
    r.steps()
    r.at_fault()
    for call in (r.grad, r.loss) if r.rank == 1 else (r.loss, r.grad):
        call()


@case(2, "OTHER_ORDER OTHER_BRANCH", 0, 1, wait=5.6)
@case(4, "OTHER_ORDER OTHER_BRANCH", 3, wait=5.6, name="other_order_of_four_in_the_first_step")
def other_order_in_the_first_step(r: Rank) -> None:
    r.at_fault()
    for call in (r.grad, r.loss) if r.rank == r.size - 1 and r.rank else (r.loss, r.grad):
        call()


@case(3, "OTHER_ORDER", 1, says=("'grad'",))
def missing_call(r: Rank) -> None:
    r.steps()
    r.at_fault()
    for step in range(3):
        r.loss()
        if r.rank != 1 or step != 1:
            r.grad()
        r.metric()


@case(2, "EXTRA_CALL", 1, says=("'debug'", "planted_calls.py:"))
def extra_call(r: Rank) -> None:
    r.steps()
    r.at_fault()
    r.loss()
    if r.rank == 1:
        _native.note_call_site()
        core.allreduce(np.ones(3, np.float32), name="debug", op=SUM)
    r.grad()


@case(2, "EXTRA_CALL", 1)
def same_call_twice(r: Rank) -> None:
    r.steps()
    r.at_fault()
    r.loss()
    r.grad()
    if r.rank == 1:
        r.grad()
    r.metric()


@case(4, "OTHER_BRANCH", 2, says=("'validation'", "'fine_tuning'"))
@case(2, "OTHER_BRANCH", 0, 1, name="wrong_branch_of_two")
def wrong_branch(r: Rank) -> None:
    r.steps()
    r.at_fault()
    odd = r.rank == min(2, r.size - 1)
    core.allreduce(r.big, name="validation" if odd else "fine_tuning", op=SUM)


@case(3, "EXTRA_CALL", 1)
def fewer_batches_then_barrier(r: Rank) -> None:
    r.steps(4)
    r.at_fault()
    r.steps(3 if r.rank == 1 else 5)
    core.barrier(name="end")


@case(2, "LEFT", 1)
def fewer_batches(r: Rank) -> None:
    r.steps(4)
    r.at_fault()
    r.steps(3 if r.rank == 1 else 5)


# Different values.


@case(3, "DISAGREE", 2, says=("'weights'",))
@case(2, "DISAGREE", 0, 1, name="other_shape_of_two")
def other_shape(r: Rank) -> None:
    r.steps()
    r.at_fault()
    length = 5 if r.rank == r.size - 1 else 4
    core.allreduce(np.ones(length, np.float32), name="weights", op=SUM)


@case(3, "DISAGREE", 1)
def other_root(r: Rank) -> None:
    r.steps()
    r.at_fault()
    core.broadcast(np.ones(4), name="weights", root=2 if r.rank == 1 else 0)


@case(3, "DISAGREE", 2)
def other_kind(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 2:
        core.allgather(np.ones(4, np.float32), name="weights")
    else:
        core.allreduce(np.ones(4, np.float32), name="weights", op=SUM)


@case(3, "DISAGREE", 0)
def alltoall_without_a_joined_rank(r: Rank) -> None:
    r.steps()
    if r.rank == 0:
        r.at_fault()
        core.join()
    time.sleep(0.3)
    r.at_fault()
    core.alltoall(np.ones(3, np.float32), name="exchange")
