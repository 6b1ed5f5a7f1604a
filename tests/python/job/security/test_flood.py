"""Four processes start as a job while an attacker connects to each port that they open.

TFRING_TEST_FLOOD=10000 opens more connections than an ordinary run; with -s the times are printed.
The attacker connects to all ports that this machine opens meanwhile: run it in a separate network
namespace, such as `unshare --net sh -c "ip link set lo up; python -m pytest ..."`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacks import Flood
from bootstrap_jobs import SECRET, free_port
from launcher_tools import REPORT, environment, wait_until, write_script

from tfring.job.handshake import auth

pytest.importorskip("tfring.runtime._native")

CONNECTIONS = int(os.environ.get("TFRING_TEST_FLOOD", "1000"))
RANKS = 4
START_SECONDS = 30
# Descriptors that this process needs for other purposes.
OTHERS = 500

SCRIPT = """
    import time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    report(f"begins.{os.environ['TFRING_X_RANK']}", os.getpid())
    begin = time.monotonic()
    world.init()
    seconds = time.monotonic() - begin
    total = core.allreduce(np.full(1 << 20, topology.rank() + 1.0), name="sum", op=1)
    assert (total == 10.0).all()
    report(f"seconds.{topology.rank()}", seconds)
    world.shutdown()
"""


@pytest.fixture
def held() -> Iterator[int]:
    """The number of connections this process can hold, with the soft limit raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(2 * CONNECTIONS, hard - OTHERS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start_job(folder: Path, port: int, before_others: Callable[[], None]) -> list[float]:
    """Starts rank 0, and the others after `before_others`; returns the seconds of init."""
    folder.mkdir()
    command = [sys.executable, write_script(folder, SCRIPT, header=REPORT), str(folder)]
    common = {
        "TFRING_X_SIZE": str(RANKS),
        "TFRING_RENDEZVOUS_ADDR": "127.0.0.1",
        "TFRING_RENDEZVOUS_PORT": str(port),
        "TFRING_SECRET": SECRET,
        "TFRING_START_TIMEOUT": str(START_SECONDS),
    }
    ranks: list[subprocess.Popen[str]] = []

    def start(rank: int) -> None:
        own = environment(**common, TFRING_X_RANK=str(rank))
        ranks.append(subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True))

    try:
        start(0)
        assert wait_until((folder / "begins.0").exists), "rank 0 did not come up"
        before_others()
        for rank in range(1, RANKS):
            start(rank)
        errors = [rank.communicate(timeout=3 * START_SECONDS)[1] for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, errors
    return [float((folder / f"seconds.{rank}").read_text()) for rank in range(RANKS)]


@pytest.mark.slow
def test_processes_start_within_their_time_in_a_flood(held: int, tmp_path: Path) -> None:
    """The connections exist when ranks 1 to 3 come, and as many again come meanwhile."""
    alone = start_job(tmp_path / "alone", free_port(), lambda: None)
    hello = [
        auth.first_message(auth.Hello(role, rank, listener))
        for role in auth.Role
        for rank in range(1, RANKS)
        for listener in range(2)
    ]
    port = free_port()
    with Flood(2 * CONNECTIONS, hello, held=held) as flood:
        begin = time.monotonic()

        def flood_is_there() -> None:
            assert wait_until(lambda: flood.opened >= CONNECTIONS, START_SECONDS)

        flooded = start_job(tmp_path / "flooded", port, flood_is_there)
        seconds = time.monotonic() - begin
        opened = flood.opened
        targets = flood.targets
    print(
        f"\n{opened} connections to {len(targets)} ports in {seconds:.1f} s; init took "
        f"{[f'{s:.2f}' for s in flooded]} s by rank, without them {[f'{s:.2f}' for s in alone]} s"
    )
    assert port in targets and opened >= CONNECTIONS
    assert max(flooded) < START_SECONDS
