"""Two hosts as network namespaces, and a fake ssh from the first to the second."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import plain_shell
from launcher_tools import environment
from network_namespaces import hosts


@contextlib.contextmanager
def two_hosts(folder):
    """Makes two hosts; the second runs commands for `ssh`. Gives them and a PATH with `ssh`."""
    binary = Path(folder) / "bin"
    binary.mkdir()
    ssh = binary / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {sys.executable} {plain_shell.__file__} "$@"\n')
    ssh.chmod(0o755)
    with hosts(2) as made:
        server = subprocess.Popen(
            [*inside(made, 1), sys.executable, plain_shell.__file__, "serve"],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            yield made, f"{binary}{os.pathsep}{os.environ['PATH']}"
        finally:
            server.kill()
            server.communicate()


def inside(made, host):
    """The command prefix that runs a command on a host."""
    return ["ip", "netns", "exec", made.name(host)]
