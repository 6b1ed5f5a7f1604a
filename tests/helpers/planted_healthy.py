"""Planted faults: jobs that go on, with slow ranks or without any fault."""

from __future__ import annotations

import random
import time

import numpy as np
from planted_cases import SUM, Rank, case, core

# Slow ranks.


@case(3, "SLOW", 1, wait=0.2)
def slow_data_loader(r: Rank) -> None:
    for _ in range(15):
        r.step(0.08 if r.rank == 1 else 0.005)
    r.at_fault()
    r.on_forever(lambda: 0.08 if r.rank == 1 else 0.005)


# Healthy jobs.


@case(3, "NOTHING", wait=1.5)
def healthy(r: Rank) -> None:
    r.steps()
    r.at_fault()
    r.on_forever(lambda: 0.01)


@case(4, "NOTHING", wait=1.5)
def uneven_steps(r: Rank) -> None:
    dice = random.Random(r.rank)
    r.steps()
    r.at_fault()
    r.on_forever(lambda: dice.expovariate(25.0))


@case(3, "NOTHING", wait=0.7)
def long_step_on_a_rank_now_and_then(r: Rank) -> None:
    for step in range(18):
        r.step(0.4 if step % 3 == r.rank and step > 10 else 0.005)
    r.at_fault()
    r.step(1.2 if r.rank == 1 else 0.0)
    r.on_forever()


@case(2, "NOTHING", wait=0.7)
def long_first_step(r: Rank) -> None:
    r.at_fault()
    time.sleep(20.0 if r.rank == 1 else 0.0)
    r.on_forever()


@case(3, "NOTHING", wait=1.2)
def others_go_on_after_a_join(r: Rank) -> None:
    r.steps()
    r.at_fault()
    if r.rank == 2:
        core.join()
    r.on_forever()


@case(4, "NOTHING", wait=1.2)
def process_sets_side_by_side(r: Rank) -> None:
    pairs = [core.add_process_set(pair) for pair in ([0, 1], [2, 3])]
    r.at_fault()
    for _ in range(10**6):
        time.sleep(0.01)
        core.allreduce(np.ones(8), name="pair", op=SUM, process_set=pairs[r.rank // 2])


@case(2, "OVER", wait=0.5)
def ended_well(r: Rank) -> None:
    r.steps()
    r.at_fault()


@case(3, "NOTHING", wait=1.2)
def goes_on_after_a_failed_step(r: Rank) -> None:
    r.steps()
    for number in (0, 1):
        run = core.begin_run()
        try:
            if r.rank == 1 and number == 0:
                raise ValueError("bad batch")
            r.steps(2)
            core.end_run(run)
        except (ValueError, core.CoreError) as error:
            core.fail_run(run, str(error))
    r.at_fault()
    r.on_forever()
