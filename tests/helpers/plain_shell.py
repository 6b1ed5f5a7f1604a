"""A fake ssh between network namespaces: commands over plain TCP, for tests only.

With the argument "serve" it is the server, otherwise the client, called like ssh.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys

PORT = 2222


def serve() -> None:
    """Runs the command of each connection; the connection is its input and output."""
    with socket.create_server(("", PORT)) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb", buffering=0) as file:
                size = int(file.read(8))
                command = b""
                while len(command) < size:
                    command += file.read(size - len(command))
                subprocess.Popen(
                    ["bash", "-c", command.decode()], stdin=connection, stdout=connection
                )


def call(words: list[str]) -> int:
    """Runs a command on a host, and passes its input and output on."""
    while words[0].startswith("-"):
        words = words[2 if words[0] in ("-o", "-p", "-i") else 1 :]
    host, command = words[0], words[1].encode()
    try:
        connection = socket.create_connection((host, PORT))
    except OSError as error:
        print(f"ssh: connect to host {host} port {PORT}: {error.strerror}", file=sys.stderr)
        return 255
    with connection:
        connection.sendall(b"%08d" % len(command) + command)
        sources = [0, connection.fileno()]
        while connection.fileno() in sources:
            ready, _, _ = select.select(sources, [], [])
            for fd in ready:
                data = os.read(fd, 1 << 16) if fd == 0 else connection.recv(1 << 16)
                if fd == 0 and data:
                    connection.sendall(data)
                elif fd == 0:
                    connection.shutdown(socket.SHUT_WR)
                    sources.remove(0)
                elif data:
                    os.write(1, data)
                else:
                    sources.remove(fd)
    return 0


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["serve"] else call(sys.argv[1:]))
