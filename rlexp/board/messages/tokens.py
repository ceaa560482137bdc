"""Master keys and join tokens: what a board's password does not give, each as one line of text that can be copied.

The trainer keeps the *master key*. From it follow the key of each actor, by the actor's id, and the pair of keys of the
trainer's Ed25519 signatures: everybody who knows its public key can verify them, nobody else can sign. A *join token*
has one actor's key and the trainer's public key, and nothing of the master. A line has a prefix, base64url, and a
checksum that finds typing errors.
"""

from __future__ import annotations

import hmac
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final

from rlexp.board.messages.credentials import ActorKeys, SharedKeys, TrainerKeys, message_key
from rlexp.board.messages.tasks import is_name
from rlexp.errors import UsageError

MASTER_PREFIX: Final = "rlexp-master-1-"
TOKEN_PREFIX: Final = "rlexp-token-1-"
_CHECKSUM_BYTES: Final = 4
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


def encode_line(prefix: str, content: bytes) -> str:
    """Return ``content`` as a line of text that begins with ``prefix`` and ends with a checksum."""
    checked = content + _checksum(prefix, content)
    return prefix + urlsafe_b64encode(checked).decode().rstrip("=")


def decode_line(text: str, prefix: str, kind: str) -> bytes:
    """Return what ``encode_line`` was given; raises UsageError, which names ``kind`` and nothing of ``text``."""
    text = text.strip()
    if not text.startswith(prefix):
        other = {MASTER_PREFIX: "a master key", TOKEN_PREFIX: "a join token"}
        found = next((name for start, name in other.items() if text.startswith(start)), "something else")
        raise UsageError(f"a {kind} begins with {prefix}; this is {found}", "rlexp board keys makes both")
    try:
        checked = urlsafe_b64decode(text[len(prefix) :] + "=" * (-len(text[len(prefix) :]) % 4))
    except (Base64Error, ValueError) as error:
        raise unreadable(kind) from error
    content, checksum = checked[:-_CHECKSUM_BYTES], checked[-_CHECKSUM_BYTES:]
    if encode_line(prefix, content) != text or checksum != _checksum(prefix, content):
        raise unreadable(kind)
    return content


def _checksum(prefix: str, content: bytes) -> bytes:
    return sha256(prefix.encode() + content).digest()[:_CHECKSUM_BYTES]


def unreadable(kind: str) -> UsageError:
    """Return the error of a line in which something is wrong."""
    return UsageError(f"the {kind} is not as it was made: a character is missing or wrong", "copy the whole line again")


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
        _ed25519()
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
        return JoinToken(check_actor(actor), self.actor_key(actor), public_key(self.signing_key))

    def keys(self, task_id: str) -> TrainerKeys:
        """Return the trainer's end of a task; raises UsageError where nothing can be signed here."""
        _ed25519()
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
        return sign(self.master.signing_key, statement)

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        public = public_key(self.master.signing_key)
        return is_signed(public, statement, signature)


@dataclass(frozen=True)
class TokenKeys:
    """The end of an actor that has a token."""

    actor: str
    key: bytes = field(repr=False)
    published_key: bytes = field(repr=False)
    trainer: bytes = field(repr=False)

    num_signature_bytes = _SIGNATURE_BYTES

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        return is_signed(self.trainer, statement, signature)


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


def public_key(private_key: bytes) -> bytes:
    """Return the 32 bytes by which the Ed25519 signatures of ``private_key [32]`` are verified."""
    key: bytes = _ed25519().Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()
    return key


def sign(private_key: bytes, content: bytes) -> bytes:
    """Return the signature of ``content``, 64 bytes."""
    signature: bytes = _ed25519().Ed25519PrivateKey.from_private_bytes(private_key).sign(content)
    return signature


def is_signed(key: bytes, content: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` of ``content`` was made by whom the public ``key`` belongs to."""
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> ModuleType:
    """Return cryptography's module; raises UsageError where it is not installed: a board without tokens needs none."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        message = "keys and tokens of a board need cryptography, which is not installed"
        raise UsageError(message, "pip install 'rlexp[redis]'") from error
    return ed25519
