"""Planted faults: ranks that do not make a call, or that get no data."""

from __future__ import annotations

import os
import queue
import socket
import time

import numpy as np
from planted_cases import FOREVER, SUM, Rank, case, core

# A rank that does not make the call.


@case(3, "NOT_CALLING", 2, says=("waits for a queue",))
def data_loader_hangs(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 2:
        queue.Queue[int]().get(timeout=FOREVER)
    r.steps()


@case(3, "NOT_CALLING", 1, says=("computes in",))
def endless_loop(r: Rank) -> None:
    r.steps()
    r.at_fault()
    end = time.monotonic() + FOREVER
    while r.rank == 1 and time.monotonic() < end:
        pass
    r.steps()


@case(3, "NOT_CALLING", 1, says=("sleeps in",))
def sleeps_while_the_schedule_is_locked(r: Rank) -> None:
    for _ in range(200):  # a locked schedule gives ranks plans of calls that others have not made
        time.sleep(0.002)
        r.grad()
    r.at_fault()
    if r.rank == 1:
        time.sleep(FOREVER)
    r.grad()


@case(3, "NOT_CALLING", 1, 2)
def only_one_rank_calls(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank != 0:
        time.sleep(FOREVER)
    r.steps()


@case(2, "NOT_CALLING", 1, wait=5.6)
def before_the_first_call(r: Rank) -> None:
    r.at_fault()
    if r.rank == 1:
        time.sleep(FOREVER)
    r.steps()


@case(2, "NOT_CALLING", 1, settings={"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "1.2"}, wait=2.5)
def not_calling_until_the_limit(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 1:
        time.sleep(FOREVER)
    r.steps()


# Join and process sets.


@case(2, "NOT_CALLING", 1, says=("join",), wait=3.5)
def join_on_one_rank(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 0:
        core.join()
    time.sleep(FOREVER)


@case(3, "NOT_CALLING", 1)
def member_of_a_set_never_calls(r: Rank) -> None:
    pair = core.add_process_set([0, 1])
    r.steps()
    r.at_fault()
    if r.rank == 0:
        core.allreduce(np.ones(3), name="pair", op=SUM, process_set=pair)
    time.sleep(FOREVER)


@case(3, "OTHER_ORDER", 0, 1, 2)
def process_sets_in_a_circle(r: Rank) -> None:
    sets = {pair: core.add_process_set(list(pair)) for pair in ((0, 1), (1, 2), (0, 2))}
    r.steps()
    r.at_fault()
    for pair in {0: ((0, 1), (0, 2)), 1: ((1, 2), (0, 1)), 2: ((0, 2), (1, 2))}[r.rank]:
        core.allreduce(np.ones(3), name=f"pair{pair}", op=SUM, process_set=sets[pair])


@case(3, "OTHER_ORDER", 0, 1)
def process_sets_crosswise(r: Rank) -> None:
    pair = core.add_process_set([0, 1], name="a")
    order = {0: (0, pair), 1: (pair, 0), 2: (0,)}[r.rank]
    r.steps()
    r.at_fault()
    for number in order:
        core.allreduce(np.ones(3), name="both", op=SUM, process_set=number)


@case(3, "NOT_CALLING", 2)
def process_set_not_added_everywhere(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 2:
        time.sleep(FOREVER)
    core.add_process_set([0, 1])


@case(3, "NOT_CALLING", 0)
def receives_what_nobody_sends(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 1:
        core.recv(np.float32, name="activations", source=0)
    time.sleep(FOREVER)


# Cut links.


def cut(r: Rank, one: int, other: int) -> None:
    """Replaces the connection of two ranks by one that nobody reads, without closing it."""
    peer = {one: other, other: one}.get(r.rank)
    if peer is not None:
        keep = os.dup(r.peers[peer])
        mine, silent = socket.socketpair()
        mine.setblocking(False)
        os.dup2(mine.fileno(), r.peers[peer])
        r.kept = (keep, mine, silent)  # type: ignore[attr-defined]


SOCKETS = {"TFRING_X_SHARED_MEMORY": "0"}


@case(4, "LINK", 2, 3, settings=SOCKETS)
def cut_link_in_a_ring(r: Rank) -> None:
    r.steps()
    cut(r, 2, 3)
    r.at_fault()
    core.allreduce(np.ones(1 << 20, np.float32), name="big", op=SUM)


@case(2, "LINK", 0, 1, settings=SOCKETS)
def cut_link(r: Rank) -> None:
    r.steps()
    cut(r, 0, 1)
    r.at_fault()
    r.steps()


@case(3, "LINK", 1, 2, settings=SOCKETS)
def cut_link_below_a_chain(r: Rank) -> None:
    r.steps()
    cut(r, 1, 2)
    r.at_fault()
    core.broadcast(np.ones(1 << 20, np.float32), name="weights", root=0)
    core.barrier(name="end")
