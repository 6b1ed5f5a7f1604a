"""A name server for tests. It reads names and addresses from a JSON file for each query.

Run as a program: FOLDER ADDRESS. It answers at port 53 of that address, and writes each query
to FOLDER/asked.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from dnslib import QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSLogger, DNSServer


class Resolver(BaseResolver):
    """Answers from FOLDER/names; a name that is not there does not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def resolve(self, request, handler):
        del handler
        name = str(request.q.qname).rstrip(".")
        addresses = json.loads((self._folder / "names").read_text())
        reply = request.reply()
        if name not in addresses:
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(addresses[name]), ttl=0))
        with (self._folder / "asked").open("a") as file:
            file.write(f"{name}\n")
        return reply


if __name__ == "__main__":
    server = DNSServer(Resolver(Path(sys.argv[1])), address=sys.argv[2], logger=DNSLogger("pass"))
    server.start_thread()
    print("ready", flush=True)
    threading.Event().wait()
