"""A job over two hosts: two network namespaces, joined by a cable."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest
from launcher_tools import environment

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
ADDRESSES = ("10.201.77.1", "10.201.77.2")


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Two namespaces with one address each; their names."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    names = [f"tfring{os.getpid()}{letter}" for letter in "ab"]
    cable = [f"tf{os.getpid() % 100000}{letter}" for letter in "ab"]
    try:
        for name in names:
            made = ip("netns", "add", name)
            if made.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
        made = ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        if made.returncode != 0:
            pytest.skip(f"no pair of interfaces can be made here: {made.stderr.strip()}")
        for name, end, address in zip(names, cable, ADDRESSES, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                ip("netns", "delete", name)


def run_job(hosts, **more):
    """Starts rank 0 on the first and rank 1 on the second; returns what they print."""
    ranks = []
    for rank, host in enumerate(hosts):
        variables = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29500"
        )
        command = ["ip", "netns", "exec", host, sys.executable, "-c", SCRIPT]
        variables = {**variables, "TFRING_START_TIMEOUT": "20", **more}
        ranks.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True))
    return [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]


def test_two_hosts(hosts, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    fine = [[2, 1, *ADDRESSES], [2, 1, *reversed(ADDRESSES)]]
    assert run_job(hosts, TFRING_SECRET_FILE=str(secret)) == fine
    assert run_job(hosts, TFRING_INSECURE="1", LOCAL_WORLD_SIZE="1") == fine
    for told in run_job(hosts, LOCAL_WORLD_SIZE="1"):
        assert told.startswith("SecretError") and "TFRING_SECRET_FILE" in told
    # Rank 0 cannot know of the others; rank 1 gets the error at once, rank 0 when the time is up.
    first, second = run_job(hosts, TFRING_START_TIMEOUT="2")
    assert second.startswith("SecretError")
    assert "if they run on other hosts, set TFRING_SECRET_FILE" in first
