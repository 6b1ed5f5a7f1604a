"""A fixture for jobs whose ranks are threads."""

from __future__ import annotations

import pytest
from bootstrap_jobs import SECRET, close, free_port, identity, run_ranks

from tfring.job.bootstrap.connect import connect_job
from tfring.runtime.settings.environment import Settings


@pytest.fixture
def connect_all():
    """Connects the ranks of jobs; closes their connections after the test."""
    opened = []

    def connect_ranks(size, settings=None, each=None, **more):
        port = free_port()

        def work(rank):
            own = each[rank] if each else settings or Settings(secret=SECRET, start_timeout=20)
            return connect_job(identity(rank, size, port, **more), own, {})

        memberships, errors = run_ranks(work, range(size))
        opened.extend(memberships.values())
        return memberships, errors

    yield connect_ranks
    for membership in opened:
        close(membership)
