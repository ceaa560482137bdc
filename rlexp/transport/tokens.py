"""Master keys and join tokens: what a board's password does not give, each as one line of text that can be copied.

The trainer keeps the *master key*. From it follow the key of each actor, by the actor's id, and the pair of keys of the
trainer's signatures. A *join token* has one actor's key and the trainer's public key, and nothing of the master.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

from rlexp.errors import UsageError
from rlexp.transport.credentials import ActorKeys, SharedKeys, TrainerKeys, message_key
from rlexp.transport.key_lines import MASTER_PREFIX, TOKEN_PREFIX, decode_line, encode_line, unreadable
from rlexp.transport.task_limits import is_name

MASTER_VARIABLE: Final = "RLEXP_BOARD_MASTER"
"""Has the trainer's master key, or ``@FILE`` with it."""
TOKEN_VARIABLE: Final = "RLEXP_BOARD_TOKEN"
"""Has an actor's join token, or ``@FILE`` with it."""
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_ACTOR: Final = b"rlexp actor 1 "
_TRAINER: Final = b"rlexp trainer 1"
_CLIENT: Final = "client"
"""The id in the token of whoever submits tasks; it sends no fragments."""
_MOST_BYTES: Final = 4096
"""Of a file with a key or token."""


@dataclass(frozen=True)
class JoinToken:
    """What one actor needs to send fragments, and to know its trainer."""

    actor: str
    """Its id: letters, digits, ``-`` and ``_``, at most 64 of them."""
    key: bytes = field(repr=False)
    trainer: bytes = field(repr=False)
    """The public key of the trainer's signatures."""

    def keys(self, task_id: str) -> ActorKeys:
        """Return the actor's end of a task; raises UsageError where signatures cannot be verified here."""
        _signatures()
        return TokenKeys(self.actor, message_key(self.key, task_id), message_key(b"", task_id), self.trainer)

    def to_text(self) -> str:
        """Return the line that :func:`parse_token` reads."""
        actor = self.actor.encode()
        return encode_line(TOKEN_PREFIX, bytes([len(actor)]) + actor + self.key + self.trainer)


@dataclass(frozen=True)
class MasterKey:
    """What the trainer's keys and those of all actors follow from."""

    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> MasterKey:
        """Return a key that nobody else has."""
        return MasterKey(secrets.token_bytes(_KEY_BYTES))

    def token(self, actor: str) -> JoinToken:
        """Return the token of an actor, always the same; raises UsageError where the id cannot be one."""
        return JoinToken(check_actor(actor), self.actor_key(actor), _signatures().public_key(self.signing_key))

    def keys(self, task_id: str) -> TrainerKeys:
        """Return the trainer's end of a task; raises UsageError where nothing can be signed here."""
        _signatures()
        return MasterKeys(self, task_id)

    def to_text(self) -> str:
        """Return the line that :func:`parse_master` reads."""
        return encode_line(MASTER_PREFIX, self.secret)

    def actor_key(self, actor: str) -> bytes:
        """Return the key in the token of an actor."""
        return hmac.digest(self.secret, _ACTOR + actor.encode(), "sha256")

    @property
    def signing_key(self) -> bytes:
        """The private key of the trainer's signatures."""
        return hmac.digest(self.secret, _TRAINER, "sha256")


@dataclass(frozen=True)
class MasterKeys:
    """The trainer's end of a task whose actors have tokens."""

    master: MasterKey
    task_id: str

    has_tokens = True
    num_signature_bytes = _SIGNATURE_BYTES

    @property
    def published_key(self) -> bytes:
        return message_key(b"", self.task_id)  # it finds damage only; the signature finds what is forged

    def key_of(self, actor: str) -> bytes | None:
        return message_key(self.master.actor_key(actor), self.task_id) if is_name(actor) else None

    def sign(self, statement: bytes) -> bytes:
        signature: bytes = _signatures().sign(self.master.signing_key, statement)
        return signature

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        public = _signatures().public_key(self.master.signing_key)
        return bool(_signatures().is_signed(public, statement, signature))


@dataclass(frozen=True)
class TokenKeys:
    """The end of an actor that has a token."""

    actor: str
    key: bytes = field(repr=False)
    published_key: bytes = field(repr=False)
    trainer: bytes = field(repr=False)

    num_signature_bytes = _SIGNATURE_BYTES

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        return bool(_signatures().is_signed(self.trainer, statement, signature))


def check_actor(actor: str) -> str:
    """Return ``actor``; raises UsageError where it cannot be the id of one."""
    if not is_name(actor):
        raise UsageError(
            f"{actor[:80]!r} cannot be the id of an actor", "use letters, digits, - and _, at most 64 of them"
        )
    return actor


def trainer_keys(master: MasterKey | None, password: str, task_id: str) -> TrainerKeys:
    """Return the trainer's end of a task: without a master key, what the board's password gives."""
    return SharedKeys.of(password, task_id) if master is None else master.keys(task_id)


def actor_keys(token: JoinToken | None, password: str, task_id: str) -> ActorKeys:
    """Return an actor's end of a task: without a token, what the board's password gives."""
    return SharedKeys.of(password, task_id) if token is None else token.keys(task_id)


def client_token(token: JoinToken | None, environment: Mapping[str, str] = os.environ) -> JoinToken | None:
    """Return what a client verifies a trainer's signatures with: its token, or one of the trainer's master key."""
    master = read_master(environment) if token is None else None
    return token if master is None else master.token(_CLIENT)


def read_master(environment: Mapping[str, str] = os.environ) -> MasterKey | None:
    """Return the key that $RLEXP_BOARD_MASTER names; None without one. Raises UsageError."""
    text = environment.get(MASTER_VARIABLE, "").strip()
    return parse_master(_contents(text)) if text else None


def read_token(environment: Mapping[str, str] = os.environ) -> JoinToken | None:
    """Return the token that $RLEXP_BOARD_TOKEN names; None without one. Raises UsageError."""
    text = environment.get(TOKEN_VARIABLE, "").strip()
    return parse_token(_contents(text)) if text else None


def parse_master(text: str) -> MasterKey:
    """Return the master key that ``text`` is; raises UsageError, whose message has nothing of it."""
    content = decode_line(text, MASTER_PREFIX, "master key")
    if len(content) != _KEY_BYTES:
        raise unreadable("master key")
    return MasterKey(content)


def parse_token(text: str) -> JoinToken:
    """Return the join token that ``text`` is; raises UsageError, whose message has nothing of it."""
    content = decode_line(text, TOKEN_PREFIX, "join token")
    length = content[0] if content else 0
    actor = content[1 : 1 + length].decode("ascii", "replace")
    keys = content[1 + length :]
    if len(keys) != 2 * _KEY_BYTES or not is_name(actor):
        raise unreadable("join token")
    return JoinToken(actor, keys[:_KEY_BYTES], keys[_KEY_BYTES:])


def _contents(text: str) -> str:
    """Return ``text``, or where it is ``@FILE`` what stands in the file."""
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_MOST_BYTES).strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} with a key or token cannot be read: {type(error).__name__}") from error


def _signatures() -> ModuleType:
    try:
        from rlexp.transport import signatures
    except ModuleNotFoundError as error:
        message = "keys and tokens of a board need cryptography, which is not installed"
        raise UsageError(message, "pip install 'rlexp[redis]'") from error
    return signatures
