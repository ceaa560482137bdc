"""Masking of what looks like a password, before a command or a configuration is written where others read it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

MASK: Final = "***"
_SECRET_WORDS: Final = frozenset({"password", "passwd", "passphrase", "secret", "token", "credential", "credentials"})
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("access", "key"), ("private", "key")})
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")
_URL_QUERY: Final = re.compile(r"(?<=[?&])(?P<key>[\w.-]+)=(?P<value>[^&#\s]+)")


def is_secret(key: str) -> bool:
    """Return whether a key names a secret: by whole words, so ``auth_token`` does and ``num_tokens`` does not."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower())
    return not _SECRET_WORDS.isdisjoint(words) or not _SECRET_PAIRS.isdisjoint(pairwise(words))


def masked(value: Any) -> Any:
    """Return ``value`` with the values of secret keys, at any depth, and passwords inside URLs as ``***``."""
    if isinstance(value, Mapping):
        return {key: MASK if is_secret(str(key)) and item is not None else masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_text(text: str) -> str:
    """Return a text without the passwords of its URLs: ``//user:PASSWORD@host`` and ``?password=PASSWORD``."""
    if "://" not in text:
        return text
    text = _URL_PASSWORD.sub(rf"\1:{MASK}", text)
    return _URL_QUERY.sub(lambda found: f"{found['key']}={MASK}" if is_secret(found["key"]) else found[0], text)


def has_secrets(value: Any) -> bool:
    """Return whether ``masked`` would hide something of ``value``, which is made of JSON's types."""
    return bool(masked(value) != value)


def masked_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line with ``key=SECRET``, ``--key SECRET`` and passwords in URLs masked."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        follows_secret = bool(shown) and shown[-1].startswith("-") and "=" not in shown[-1] and is_secret(shown[-1])
        if follows_secret:
            shown.append(MASK)
        else:
            shown.append(f"{name}={MASK}" if equals and is_secret(name) else masked(argument))
    return shown
