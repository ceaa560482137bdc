"""The addresses at which a server listens, and the one by which others reach it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Final

import psutil

from rlexp.errors import UsageError

LOOPBACK: Final = "127.0.0.1"
_ALL: Final = {"0.0.0.0", "::", "*"}
_OUTSIDE: Final = "192.0.2.1"
"""An address that nobody has (RFC 5737): the system says by which of its own it would send there, and sends nothing."""


@dataclass(frozen=True)
class Binding:
    """Where a server listens."""

    addresses: tuple[str, ...]
    """As numbers."""
    host: str
    """The name or address that others type."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return all(ipaddress.ip_address(address).is_loopback for address in self.addresses)

    @property
    def public_address(self) -> str | None:
        """An address beyond private networks at which it listens; None without one."""
        addresses = list(self.addresses)
        if any(ipaddress.ip_address(address).is_unspecified for address in addresses):
            addresses = own_addresses()
        return next((address for address in addresses if ipaddress.ip_address(address).is_global), None)


def binding(bind: str | None, host: str | None = None) -> Binding:
    """Return where a server with ``--bind`` listens, on loopback too, and ``host``, else an address that fits.

    Raises UsageError where ``bind`` has no address.
    """
    if bind is None:
        return Binding((LOOPBACK,), host or LOOPBACK)
    if bind in _ALL:
        everywhere = "::" if bind == "::" else "0.0.0.0"
        return Binding((everywhere,), host or _outgoing_address())
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"--bind {bind} is no address and no name that has one", _own_addresses_hint()) from error
    return Binding((*sorted(found - {LOOPBACK}), LOOPBACK), host or bind)


def check_port(binding: Binding, port: int) -> None:
    """Raise UsageError where a server could not listen at ``port``."""
    for address in binding.addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen()
            except OSError as error:
                raise _refused(error, address, port) from error


def own_addresses() -> list[str]:
    """Return the addresses of this machine's network interfaces."""
    return [
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]


def _refused(error: OSError, address: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} of {address} is taken by another program",
            "give --port N; a Redis that the system has started can be a board itself, see docs/board.md",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{address} is no address of this machine", _own_addresses_hint())
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is for the system's own services", "give --port 1024 or above")
    return UsageError(f"cannot listen at {address}:{port}: {os.strerror(error.errno or 0)}")


def _own_addresses_hint() -> str:
    own = [address for address in own_addresses() if not ipaddress.ip_address(address).is_link_local]
    return f"this machine has {', '.join(own)}; 0.0.0.0 means all of IPv4"


def _outgoing_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_OUTSIDE, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
