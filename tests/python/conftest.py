"""Fixtures of the tests that share one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def folder_for_mpirun(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the leftovers of a killed mpirun out of /tmp.

    mpirun names a folder after its process id, and does not start if that folder is there already.
    The system reuses process ids, so the name may exist already.
    """
    os.environ.update(PRTE_MCA_prte_tmpdir_base=str(tmp_path_factory.mktemp("mpirun")))


@pytest.fixture(autouse=True)
def no_job_is_left() -> Iterator[None]:
    """Fails a test that leaves the runtime initialised: other tests check the state before init."""
    yield
    topology = sys.modules.get("tfring.runtime.topology")
    if topology is not None and topology.is_initialized():
        sys.modules["tfring.world"].shutdown()
        pytest.fail("the test has called init and not shutdown")
