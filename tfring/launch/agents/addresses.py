"""The addresses at which other hosts reach this one, and the socket at which ranks meet there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from tfring.job.bootstrap import hosts
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import LOOKUP_SECONDS, look_up, ports_to_try

_TRIES = 10  # to get a free port


def own_address(interface: str | None, towards: str | None) -> str:
    """Returns the address of this host at which other hosts reach it; OSError if there is none.

    `interface` may name several, eth0,eth1. `towards` is one of the other hosts, if there are any.
    """
    if interface:
        names = [name.strip() for name in interface.split(",")]
        try:
            return hosts.chosen_interface(names, hosts.interface_addresses()).address
        except BootstrapError as error:
            raise OSError(str(error)) from None
    if not towards:
        return hosts.LOOPBACK
    family, _, _, _, where = look_up(towards, 9, LOOKUP_SECONDS)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def open_rendezvous(
    interface: str | None, towards: str | None, environ: Mapping[str, str] = os.environ
) -> socket.socket:
    """Returns a socket that is bound to the address at which other ranks can reach this host.

    It does not listen yet: nobody would accept what comes before rank 0 calls init. For the
    arguments see `own_address`; `environ` may have TFRING_PORT_RANGE.

    OSError: there is no such interface, no such host, or no free port.
    """
    address = own_address(interface, towards)
    if address.lower().startswith("fe80:"):
        raise OSError(
            f"{address} is link-local, and other hosts cannot tell on which link: name an "
            "interface with another address (--network-interface)"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ports = ports_to_try(environ)
    for port in ports if any(ports) else ports * _TRIES:
        if port == 0:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
                port = probe.getsockname()[1]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Connections of a job before may be in TIME_WAIT. Nobody else may bind the port, too.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # By its number: the kernel then keeps the port also when the listening is over.
            bound.bind((address, port))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            return bound
        except OSError:  # another program was faster
            bound.close()
    of = "stayed free long enough to be bound" if not any(ports) else "of TFRING_PORT_RANGE is free"
    raise OSError(f"no port of {address} {of}")
