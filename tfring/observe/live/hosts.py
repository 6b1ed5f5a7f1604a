"""Runs a ``tfring`` command on other hosts, through ssh, and reads what it prints."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tfring.runtime.ssh import SshOptions, check_host

_PACKAGES = str(Path(__file__).resolve().parents[3])  # where tfring was loaded from
_CONNECT_SECONDS = 20.0
# How much of the end of a host's other output is kept, for the message.
_MOST_NOISE = 2000


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name other hosts."""
    add = parser.add_argument
    about = "another host, through ssh"
    add("--host", action="append", default=[], type=_host, metavar="HOST", help=about)
    add("-p", "--ssh-port", type=int, metavar="PORT", help="port of ssh on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")


def _host(text: str) -> str:
    try:
        check_host(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


class OtherHosts:
    """Runs a ``tfring`` command on hosts; it prints one JSON object per line there.

    Used by one thread, within a `with` statement, which ends the commands.

    Args:
        options: With those of `add_host_options`.
        words: The command's name and arguments.
    """

    def __init__(self, options: argparse.Namespace, words: Sequence[str]) -> None:
        ssh = SshOptions(options.ssh_port, options.ssh_identity_file, _CONNECT_SECONDS)
        remote = ["env", f"PYTHONPATH={_PACKAGES}", sys.executable, "-m", "tfring", *words]
        self._hosts = [_Host(name, ssh.command(name, remote)) for name in options.host]

    def __enter__(self) -> OtherHosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self._hosts:
            host.end()

    def newest(self) -> list[Any]:
        """Returns the newest object of each host that has sent one."""
        return [host.newest for host in self._hosts if host.newest is not None]

    def wait(self, seconds: float) -> None:
        """Waits, at most `seconds` in all, until each command has printed an object or ended."""
        deadline = time.monotonic() + seconds
        for host in self._hosts:
            host.first.wait(max(0.0, deadline - time.monotonic()))

    def troubles(self) -> list[str]:
        """Returns a sentence for each host whose command has failed."""
        return [trouble for host in self._hosts if (trouble := host.trouble())]


class _Host:
    """One ssh, and a thread that reads its output. `newest` is replaced whole, never changed."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.newest: Any = None
        self.first = threading.Event()
        self._noise = ""
        # A process group of its own: Ctrl-C is for the viewer, which ends the command itself.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, name=f"ssh-{name}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if isinstance(found, dict) and "job" in found:
                self.newest = found
                self.first.set()
            else:  # a login message, or an error
                self._noise = (self._noise + line)[-_MOST_NOISE:]
        self._process.wait()
        self.first.set()

    def trouble(self) -> str:
        if self._thread.is_alive() or self._process.returncode in (0, None):
            return ""
        said = self._noise.strip() or f"exit code {self._process.returncode}"
        return f"host {self.name}: {said}"

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._process.terminate()
        self._thread.join(5)
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                self._process.kill()


def name_job(given: Sequence[str], found: str) -> list[str]:
    """Returns what names the job on another host.

    Args:
        given: What the user gave here.
        found: The id of the job here; "": there is none here.
    """
    if not given:
        return [found] if found else []
    return [str(Path(one).absolute()) if os.path.exists(one) else one for one in given]
