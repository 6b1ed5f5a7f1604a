"""A job over two hosts: two network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys

from launcher_tools import environment
from network_namespaces import hosts
from two_hosts import inside

SCRIPT = """
import json, os, socket, sys
from tfring.job.bootstrap.connect import connect_job
from tfring.runtime.settings.environment import read_settings
from tfring.job.environments import find_identity
from tfring.job.security.sources import take_secret
import dataclasses
settings = dataclasses.replace(read_settings(os.environ), secret=take_secret(os.environ))
try:
    job = connect_job(find_identity(os.environ), settings, os.environ)
    peer = 1 - job.rank
    with socket.socket(fileno=job.data_fds[peer]) as sock:
        print(json.dumps([job.size, job.local_size, sock.getsockname()[0], sock.getpeername()[0]]))
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def run_job(made, **more):
    """Starts rank 0 on the first and rank 1 on the second; returns what they print."""
    ranks = []
    for rank in range(2):
        variables = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=made.address(0), MASTER_PORT="29500"
        )
        command = [*inside(made, rank), sys.executable, "-c", SCRIPT]
        variables = {**variables, "TFRING_START_TIMEOUT": "20", **more}
        ranks.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True))
    return [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]


def test_two_hosts(tmp_path):
    with hosts(2) as made:
        check_two_hosts(made, tmp_path)


def check_two_hosts(made, tmp_path):
    addresses = [made.address(0), made.address(1)]
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    fine = [[2, 1, *addresses], [2, 1, *reversed(addresses)]]
    assert run_job(made, TFRING_SECRET_FILE=str(secret)) == fine
    for told in run_job(made, LOCAL_WORLD_SIZE="1"):
        assert told.startswith("SecretError") and "TFRING_SECRET_FILE" in told
    # Rank 0 cannot know of the others; rank 1 gets the error at once, rank 0 when the time is up.
    first, second = run_job(made, TFRING_START_TIMEOUT="2")
    assert second.startswith("SecretError")
    assert "if they run on other hosts, set TFRING_SECRET_FILE" in first
