"""Ed25519 signatures: a trainer makes them, everybody who knows its public key can verify them, nobody else can sign.

The only module that imports cryptography, which a board without tokens does not need.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def public_key(private_key: bytes) -> bytes:
    """Return the 32 bytes by which the signatures of ``private_key [32]`` are verified."""
    return Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def sign(private_key: bytes, content: bytes) -> bytes:
    """Return the signature of ``content``, 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private_key).sign(content)


def is_signed(key: bytes, content: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` of ``content`` was made by whom the public ``key`` belongs to."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True
