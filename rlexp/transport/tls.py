"""TLS of boards and queues: certificates are always verified, and what is wrong with one is said with its remedy."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final

from rlexp.transport.address import ServerAddress
from rlexp.transport.board_errors import BoardError

_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED; the others are those of a host name and of an address."""
_WRONG_HOST: Final = (62, 64)


def tls_context(address: ServerAddress) -> ssl.SSLContext:
    """Return how to verify the server at ``address``; raises BoardError where its CA file cannot be used."""
    try:
        return ssl.create_default_context(cafile=address.ca_file or None)
    except (OSError, ValueError) as error:
        raise BoardError(
            f"the certificates in {address.ca_file} cannot be used: {type(error).__name__}",
            "?ssl_ca_certs= names a file in PEM with the certificate of the CA",
        ) from error


def tls_problem(address: ServerAddress, error: BaseException) -> BoardError | None:
    """Return what is wrong with the server's certificate, None where that is not what ``error`` is about."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_problem(address, cause)
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return BoardError(f"{address} does not speak TLS at this port", "give the port that its TLS listens at")
    return None


def _certificate_problem(address: ServerAddress, error: ssl.SSLCertVerificationError) -> BoardError:
    if error.verify_code == _EXPIRED:
        return BoardError(
            f"the certificate of {address} has expired", "renew it at the server; is the clock of this machine right?"
        )
    if error.verify_code in _WRONG_HOST:
        return BoardError(
            f"the certificate of {address} is for another host name",
            "give the name that the certificate has, or issue one for this name",
        )
    return BoardError(
        f"the certificate of {address} is from a CA that is not trusted here: {error.verify_message}",
        f"if it is your own, give its file: {address.scheme}://HOST?ssl_ca_certs=FILE",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and what it was raised from, and what it carries, as client libraries wrap theirs."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        carried = (getattr(found, "exceptions", ()), getattr(found, "exception", None), found.args)
        flat = [*(carried[0] if isinstance(carried[0], list | tuple) else ()), carried[1], *carried[2]]
        waiting += [each for each in (found.__cause__, found.__context__, *flat) if isinstance(each, BaseException)]
