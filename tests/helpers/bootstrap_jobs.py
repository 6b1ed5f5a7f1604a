"""Jobs whose ranks are threads of this process, for tests of how a job starts."""

from __future__ import annotations

import os
import secrets
import threading

from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.listener import bind

# Jobs with the same secret try the same ports, so each run of the tests has its own secret.
SECRET = secrets.token_hex(32)


LIMIT = 60.0  # seconds; far more than needed


def free_port():
    with bind("127.0.0.1", 0, 1) as probe:
        return probe.getsockname()[1]


def run_ranks(work, ranks):
    """Runs work(rank) in a thread per rank; returns results and errors by rank."""
    results, errors = {}, {}

    def one(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank}") for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results, errors


def identity(rank, size, port, **more):
    return Identity("a test", rank, size, Rendezvous.TCP, None, None, "localhost", port, **more)


def identity_in_store(rank, size):
    return Identity("a test", rank, size, Rendezvous.STORE)


def close(membership):
    for fd in (*membership.control_fds.values(), *membership.data_fds.values()):
        os.close(fd)
