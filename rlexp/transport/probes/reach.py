"""Whether a server can be reached, and how its certificate is."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_CONNECT_S: Final = 5.0


class Obstacle(StrEnum):
    """Why a server cannot be reached."""

    NAME = "name"
    """The host's name has no address."""
    PORT = "port"
    """Nothing listens there, or something between refuses."""
    SILENCE = "silence"
    """Nothing comes back."""
    PLAIN = "plain"
    """What listens there speaks no TLS."""
    AUTHORITY = "authority"
    """The certificate is of an authority that is not trusted here."""
    HOST = "host"
    """The certificate is another host's."""
    TIME = "time"
    """The certificate has expired, or is not valid yet, by the clock of this machine."""


class ReachError(Exception):
    """A server that cannot be reached."""

    def __init__(self, obstacle: Obstacle, reason: str) -> None:
        super().__init__(reason)
        self.obstacle = obstacle
        self.reason = reason


@dataclass(frozen=True)
class Reach:
    """A server that can be reached."""

    peer: str
    """Its address as a number."""
    is_private: bool
    """Whether that is an address of a private network, or this machine."""
    connect_s: float
    """Seconds until the connection stood, with TLS where it has it."""
    tls_version: str = ""
    """Such as ``TLSv1.3``; empty without TLS."""
    certificate_left_s: float | None = None
    """Seconds until its certificate ends."""

    @property
    def is_this_machine(self) -> bool:
        """Whether nothing leaves this machine."""
        return ipaddress.ip_address(self.peer).is_loopback


def reach(host: str, port: int, has_tls: bool, ca_file: str = "") -> Reach:
    """Connect to a server once, and verify its certificate as clients do; raises ReachError."""
    started_s = time.perf_counter()
    connection = _connected(host, port)
    with connection:
        peer = str(connection.getpeername()[0]).partition("%")[0]
        is_private = not ipaddress.ip_address(peer).is_global
        if not has_tls:
            return Reach(peer, is_private, time.perf_counter() - started_s)
        with _encrypted(connection, host, ca_file) as encrypted:
            connect_s = time.perf_counter() - started_s
            return Reach(peer, is_private, connect_s, encrypted.version() or "", _left_s(encrypted))


def _connected(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), _CONNECT_S)
    except socket.gaierror as error:
        raise ReachError(Obstacle.NAME, f"{host}: {error.strerror}") from error
    except TimeoutError as error:
        raise ReachError(Obstacle.SILENCE, f"nothing comes back from {host}:{port}") from error
    except OSError as error:
        raise ReachError(Obstacle.PORT, f"{host}:{port}: {error.strerror}") from error


def _encrypted(connection: socket.socket, host: str, ca_file: str) -> ssl.SSLSocket:
    try:
        return _context(ca_file).wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ReachError(_obstacle_of(error), f"the certificate: {error.verify_message}") from error
    except OSError as error:  # also where the server waits for a command, and says nothing to the beginning of TLS
        raise ReachError(Obstacle.PLAIN, f"no TLS: {getattr(error, 'reason', '') or type(error).__name__}") from error


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ReachError(Obstacle.AUTHORITY, f"{ca_file} cannot be read, or has no certificate in PEM") from error


def _left_s(encrypted: ssl.SSLSocket) -> float | None:
    certificate = encrypted.getpeercert() or {}
    ends = certificate.get("notAfter")
    return ssl.cert_time_to_seconds(ends) - time.time() if isinstance(ends, str) else None


def _obstacle_of(error: ssl.SSLCertVerificationError) -> Obstacle:
    """Return what is wrong with a certificate, by OpenSSL's number of the error."""
    x509_v_err = {9: Obstacle.TIME, 10: Obstacle.TIME, 62: Obstacle.HOST, 64: Obstacle.HOST}
    return x509_v_err.get(error.verify_code, Obstacle.AUTHORITY)
