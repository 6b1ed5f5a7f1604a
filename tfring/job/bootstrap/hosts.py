"""The identity of this host, its network addresses, and which of them other hosts can reach."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import LOOKUP_SECONDS, resolve

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class InterfaceAddress:
    """One address of one network interface that is up."""

    interface: str
    address: str
    prefix: int
    loopback: bool

    @property
    def network(self) -> str:
        """The network that the address belongs to, for example 10.1.0.0/16."""
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False))

    def to_json(self) -> list[Any]:
        """Returns a JSON value."""
        return [self.interface, self.address, self.prefix, self.loopback]

    @staticmethod
    def from_json(value: Any) -> InterfaceAddress:
        """Reads what to_json() of another rank returned; BootstrapError for anything else."""
        try:
            name, address, prefix, loopback = value
            checked = str(ipaddress.ip_address(address))
            return InterfaceAddress(str(name), checked, int(prefix), bool(loopback))
        except (TypeError, ValueError):
            raise BootstrapError(f"a rank sent {value!r}, which is not an address") from None


def host_name() -> str:
    """Returns this host's name for messages and records: that which `tfring run` knows it by."""
    return os.environ.get("TFRING_X_HOST_NAME") or socket.gethostname()


def host_identity() -> str:
    """Returns text that is equal for processes that share the loopback interface and process ids.

    The boot id differs between machines, the namespaces between containers of one machine, and the
    name between virtual machines that were cloned while they ran.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    for namespace in ("net", "pid"):
        with contextlib.suppress(OSError):
            parts.append(os.readlink(f"/proc/self/ns/{namespace}"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def interface_addresses() -> list[InterfaceAddress]:
    """Returns the addresses of all interfaces that are up, IPv4 first, in the kernel's order."""
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def _ipv4_addresses() -> list[InterfaceAddress]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                flags = fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
                (bits,) = struct.unpack("H", flags[16:18])
                if not bits & _IFF_UP:
                    continue
                address = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24]
                mask = fcntl.ioctl(sock.fileno(), _SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue  # an interface without an IPv4 address
            prefix = int.from_bytes(mask, "big").bit_count()
            loopback = bool(bits & _IFF_LOOPBACK)
            found.append(InterfaceAddress(name, socket.inet_ntoa(address), prefix, loopback))
    return found


def _ipv6_addresses() -> list[InterfaceAddress]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        digits, _, prefix, scope, _, name = line.split()
        if scope not in ("00", "10"):  # global and host
            continue
        address = str(ipaddress.IPv6Address(bytes.fromhex(digits)))
        found.append(InterfaceAddress(name, address, int(prefix, 16), scope == "10"))
    return found


def look_here(address: str) -> tuple[bool, str]:
    """Returns whether a name or an address is one of this host's, and where to listen by it.

    The second is the address to listen at so that others reach us by that name; "" for all
    addresses. A host's own name often resolves to a loopback address on the host itself (Debian's
    127.0.1.1), or not at all, and behind address translation to one that no interface here has.
    Then only listening everywhere helps.
    """
    if address in ("localhost", LOOPBACK, "::1"):
        return True, LOOPBACK if address != "::1" else address
    try:
        found = [str(entry[4][0]) for entry in resolve(address, 0, LOOKUP_SECONDS)]
    except OSError:
        return False, ""
    own = {a.address: a.loopback for a in interface_addresses()}
    is_here = any(a in own or ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in found)
    return is_here, next((a for a in found if own.get(a) is False), "")


def split_port(text: str) -> tuple[str, int | None]:
    """Returns the host and the port of "192.0.2.7:31000" or "[fd00::1]:31000"; None: no port."""
    host, _, port = text.rpartition(":")
    if port.isdigit() and (":" not in host or host.endswith("]")) and host:
        return host.strip("[]"), int(port)
    return text.strip("[]"), None


def chosen_interface(wanted: Sequence[str], addresses: list[InterfaceAddress]) -> InterfaceAddress:
    """Returns an address of the first of the wanted interfaces that is up.

    BootstrapError: none of them is up; the message names those that are.
    """
    for name in wanted:
        for candidate in addresses:
            if candidate.interface == name:
                return candidate
    present = ", ".join(sorted({a.interface for a in addresses}))
    raise BootstrapError(
        f"TFRING_INTERFACE or --network-interface asks for {', '.join(wanted)}. On host "
        f"{host_name()} none of them is up and has an address; those that do: {present}"
    )


def common_network(by_host: list[list[InterfaceAddress]]) -> str | None:
    """Returns a network in which every host has an address of its own, or None.

    A network in which two hosts have the same address does not count: bridges such as docker0 have
    the same address on every host and do not connect them.
    """
    if not by_host:
        return None
    for candidate in by_host[0]:
        if candidate.loopback:
            continue
        network = candidate.network
        members = [[a.address for a in host if a.network == network] for host in by_host]
        firsts = [m[0] for m in members if m]
        if len(firsts) == len(by_host) == len(set(firsts)):
            return network
    return None


def route_address(towards: list[InterfaceAddress]) -> str | None:
    """Returns the address that the kernel would use to reach another host. Sends nothing."""
    for target in towards:
        if target.loopback:
            continue
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target.address, 9))
            return str(probe.getsockname()[0])
    return None
