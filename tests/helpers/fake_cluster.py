"""What the pods of a Kubernetes Job see: an address each, a name server, and variables."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_tools import environment
from network_namespaces import DIES_WITH_US, Hosts, hosts

# As the kubelet writes it: short names are looked up in the namespace of the pod first.
_ZONE = "test.svc.cluster.local"
_RESOLV_CONF = """\
nameserver {server}
search {zone} svc.cluster.local cluster.local
options ndots:5 timeout:1 attempts:2
"""
_NAME_SERVER = Path(__file__).with_name("cluster_dns.py")
SECRET = "0123456789abcdef" * 4


class Cluster:
    """Machines for pods, and a name server. Pods end with the context.

    Args:
        made: The machines; the name server is on the last one.
        folder: For files of the cluster, and the programs of the pods.
        job: The name of the job.
        service: The name of its headless service.
    """

    def __init__(self, made: Hosts, folder: Path, job: str, service: str) -> None:
        self._made, self._folder, self._job, self._service = made, folder, job, service
        self._names: dict[str, str] = {}
        self._write_names()
        server = made.address(made.count - 1)
        made.replace(folder, "/etc/hosts", "127.0.0.1 localhost\n")
        made.replace(folder, "/etc/nsswitch.conf", "hosts: files dns\n")
        made.replace(folder, "/etc/resolv.conf", _RESOLV_CONF.format(server=server, zone=_ZONE))
        command = [sys.executable, str(_NAME_SERVER), str(folder), server]
        self.server = subprocess.Popen(
            [*DIES_WITH_US, *made.inside(made.count - 1), *command],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert self.server.stdout is not None and self.server.stdout.readline() == b"ready\n"

    def full_name(self, index: int) -> str:
        """Returns the full name of a pod."""
        return f"{self._job}-{index}.{self._service}.{_ZONE}"

    def publish(self, index: int, machine: int | None = None) -> None:
        """Maps a pod's name to the address of a machine, by default that of the same number."""
        machine = index if machine is None else machine
        self._names[self.full_name(index)] = self._made.address(machine)
        self._write_names()

    def lose(self, machine: int) -> None:
        """Kills all processes of a machine."""
        self._made.kill(machine)

    def _write_names(self) -> None:
        new = self._folder / "names.new"
        new.write_text(json.dumps(self._names))
        new.rename(self._folder / "names")

    def asked(self, index: int) -> int:
        """Returns the number of queries for the address of a pod."""
        file = self._folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        return lines.count(self.full_name(index))

    def start(
        self, index: int, command: list[str], machine: int | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Starts the container of a pod.

        Args:
            index: The pod's number.
            command: The command of its container.
            machine: The machine it runs on; by default the one of the same number.
            variables: Variables of its container, besides those that Kubernetes sets.
        """
        inside = self._made.inside(index if machine is None else machine, f"{self._job}-{index}")
        own = {
            "JOB_COMPLETION_INDEX": str(index),
            "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}",
            **variables,
        }
        return subprocess.Popen(
            [*DIES_WITH_US, *inside, "env", f"--chdir={self._folder}", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**own),
        )


@contextlib.contextmanager
def cluster(
    machines: int, folder: Path, job: str = "train", service: str = "train"
) -> Iterator[Cluster]:
    """Makes a cluster for the time of the context; skips the test if that is not possible.

    Args:
        machines: The number of pods that fit.
        folder: The folder of its files; pods find programs in it by name.
        job: The job that runs there.
        service: Its headless service.
    """
    pytest.importorskip("dnslib")
    for name, command in (("python", sys.executable), ("tfring", f"{sys.executable} -m tfring")):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    with hosts(machines + 1) as made:
        try:
            yield Cluster(made, folder, job, service)
        finally:
            made.kill_all()
