"""Hosts that a test made, each with its own sshd; ssh between them needs no password.

Keys and configuration belong to the test; it reads none of the user or the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_tools import environment, wait_until
from network_namespaces import DIES_WITH_US, Hosts, hosts

_SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
PrintMotd no
"""
_CLIENT = """\
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
"""
_START_SECONDS = 60.0
# sshd wants an empty folder there for its unprivileged process; usually the service makes it.
_EMPTY_FOLDER = Path("/run/sshd")


class SshHosts:
    """The hosts, named h0, h1, ...; their processes end with the context."""

    def __init__(self, folder: Path, made: Hosts) -> None:
        self.hosts = made
        # `path` is a PATH with an ssh for these hosts.
        self._folder = folder
        self._servers: list[subprocess.Popen[bytes]] = []
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        ssh = bin_folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        self.path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"

    def up(self) -> None:
        """Makes the keys and starts the servers."""
        folder = self._folder
        self.hosts.name_all(folder)
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        key = (folder / "host_key.pub").read_text()
        names = [f"h{host},{self.hosts.address(host)}" for host in range(self.hosts.count)]
        (folder / "known_hosts").write_text("".join(f"{name} {key}" for name in names))
        (folder / "sshd_config").write_text(_SERVER.format(folder=folder))
        (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))
        _EMPTY_FOLDER.mkdir(mode=0o755, exist_ok=True)
        server = [str(shutil.which("sshd")), "-D", "-e", "-f", str(folder / "sshd_config")]
        for host in range(self.hosts.count):
            with (folder / f"sshd.h{host}.log").open("wb") as log:
                started = subprocess.Popen(
                    [*DIES_WITH_US, *self.hosts.inside(host), *server],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment(),
                )
            self._servers.append(started)
        for host in range(self.hosts.count):
            assert wait_until(lambda host=host: self._answers(host), _START_SECONDS), self.logs()

    def down(self) -> None:
        """Kills all processes on the hosts."""
        self.hosts.kill_all()
        for server in self._servers:
            server.communicate()

    def start(self, *command: object, **more: str) -> subprocess.Popen[str]:
        """Starts a command on the first host, with `more` in its environment."""
        return subprocess.Popen(
            [*self.hosts.inside(0), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PATH=self.path, **more),
        )

    def pids(self, host: int) -> list[int]:
        """Returns the ids of the processes on a host, without those of sshd."""
        found = []
        for pid in self.hosts.pids(host):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() != "sshd":
                    found.append(pid)
        return found

    def logs(self) -> str:
        """Returns the last lines of the servers' logs."""
        paths = sorted(self._folder.glob("sshd.*.log"))
        return "\n".join("\n".join(path.read_text().splitlines()[-10:]) for path in paths)

    def _answers(self, host: int) -> bool:
        tried = self.start("ssh", "-o", "BatchMode=yes", f"h{host}", "true")
        tried.communicate()
        return tried.returncode == 0


@contextlib.contextmanager
def ssh_hosts(folder: Path, count: int) -> Iterator[SshHosts]:
    """Makes hosts with sshd; skips the test if sshd is missing or hosts cannot be made.

    Args:
        folder: An empty folder for keys, configuration and logs.
        count: The number of hosts.
    """
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install openssh-server")
    with hosts(count) as made:
        ready = SshHosts(folder, made)
        try:
            ready.up()
            yield ready
        finally:
            ready.down()
