"""Keys and tokens: how both ends of a task sign and verify, and what is signed.

Without tokens, both ends derive one key from the board's password, so everybody who has it can send anything. Otherwise
the trainer keeps the *master key*. The key of each actor is derived from it and the actor's id, and so is the key pair
of the trainer's Ed25519 signatures: everybody who knows the public key can verify them, nobody else can sign. A *join
token* has one actor's key and the trainer's public key, and nothing of the master key. As text each is one line that
can be copied: a prefix, base64url, and a checksum that finds typing errors.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rlexp.board.messages.basics import InvalidMessageError, Task, is_name
from rlexp.errors import UsageError
from rlexp.files import plain

MASTER_PREFIX: Final = "rlexp-master-1-"
TOKEN_PREFIX: Final = "rlexp-token-1-"
_CHECKSUM_BYTES: Final = 4
MASTER_VARIABLE: Final = "RLEXP_BOARD_MASTER"
"""Environment variable with the trainer's master key, or ``@FILE`` with it."""
TOKEN_VARIABLE: Final = "RLEXP_BOARD_TOKEN"
"""Environment variable with an actor's join token, or ``@FILE`` with it."""
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_ACTOR: Final = b"rlexp actor 1 "
_TRAINER: Final = b"rlexp trainer 1"
_CLIENT: Final = "client"
"""The id in the token of a submitter, who sends no fragments."""
_MOST_BYTES: Final = 4096
"""Most bytes of a file with a key or token."""
_MESSAGE: Final = b"rlexp message 1 "
SIGNATURE: Final = "signature"
"""Key of the signature in a signed task's description, in hexadecimal digits."""


def encode_line(prefix: str, content: bytes) -> str:
    """Return ``content`` as a line of text that begins with ``prefix`` and ends with a checksum."""
    checked = content + _checksum(prefix, content)
    return prefix + urlsafe_b64encode(checked).decode().rstrip("=")


def decode_line(text: str, prefix: str, kind: str) -> bytes:
    """Return the content given to ``encode_line``; raises UsageError, which names ``kind`` and nothing of ``text``."""
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
    """Return the error of a damaged line."""
    return UsageError(f"the {kind} is not as it was made: a character is missing or wrong", "copy the whole line again")


@dataclass(frozen=True)
class ActorKeys:
    """The keys of an actor, or of a client, for one task."""

    key: bytes = field(repr=False)
    """The key of the messages that it sends."""
    published_key: bytes = field(repr=False)
    """The key of messages that all actors read."""
    actor: str = ""
    """The id of its token; empty without one."""
    trainer: bytes = field(default=b"", repr=False)
    """The public key of the trainer's signatures; empty without a token."""

    @property
    def num_signature_bytes(self) -> int:
        """Bytes of a trainer's signature; 0 without a token."""
        return _SIGNATURE_BYTES if self.trainer else 0

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        """Return whether the trainer made the signature; without a token, only an empty one is valid."""
        if not self.trainer:
            return not signature
        ed25519 = _ed25519()
        from cryptography.exceptions import InvalidSignature

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.trainer).verify(signature, statement)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class TrainerKeys(ActorKeys):
    """The trainer's keys for one task."""

    task_id: str = ""
    master: MasterKey | None = None
    """The key from which the keys of actors are derived; None: no tokens, and all share the trainer's key."""

    @property
    def has_tokens(self) -> bool:
        """Whether each actor has a token; then actors without one are refused."""
        return self.master is not None

    def key_of(self, actor: str) -> bytes | None:
        """Return the key of an actor's messages; None if this id may send none. Without tokens, the id is ''."""
        if self.master is None:
            return None if actor else self.key
        return message_key(self.master.actor_key(actor), self.task_id) if is_name(actor) else None

    def sign(self, statement: bytes) -> bytes:
        """Return the trainer's signature; empty without tokens."""
        if self.master is None:
            return b""
        signature: bytes = _private_key(self.master.signing_key).sign(statement)
        return signature


def password_keys(password: str, task_id: str) -> TrainerKeys:
    """Return the keys of a task without tokens: one key, derived from the board's password.

    Without a password, everybody knows the key: it then finds damaged messages, but no forged ones.
    """
    key = message_key(password.encode(), task_id)
    return TrainerKeys(key, key)


@dataclass(frozen=True)
class JoinToken:
    """The secret with which one actor sends fragments and verifies its trainer."""

    actor: str
    """Its id: letters, digits, ``-`` and ``_``, at most 64 of them."""
    key: bytes = field(repr=False)
    trainer: bytes = field(repr=False)
    """The public key of the trainer's signatures."""

    def keys(self, task_id: str) -> ActorKeys:
        """Return the actor's keys for a task; raises UsageError if signatures cannot be verified here."""
        _ed25519()
        return ActorKeys(message_key(self.key, task_id), message_key(b"", task_id), self.actor, self.trainer)

    def to_text(self) -> str:
        actor = self.actor.encode()
        return encode_line(TOKEN_PREFIX, bytes([len(actor)]) + actor + self.key + self.trainer)


@dataclass(frozen=True)
class MasterKey:
    """The key from which the trainer's keys and all actors' keys are derived."""

    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> MasterKey:
        return MasterKey(secrets.token_bytes(_KEY_BYTES))

    def token(self, actor: str) -> JoinToken:
        """Return the token of an actor, always the same; raises UsageError if the id is not valid."""
        return JoinToken(check_actor(actor), self.actor_key(actor), self.public_key)

    def keys(self, task_id: str) -> TrainerKeys:
        """Return the trainer's keys for a task; raises UsageError if nothing can be signed here."""
        key = message_key(b"", task_id)  # it finds damage only; the signature finds forgeries
        return TrainerKeys(key, key, trainer=self.public_key, task_id=task_id, master=self)

    def to_text(self) -> str:
        return encode_line(MASTER_PREFIX, self.secret)

    def actor_key(self, actor: str) -> bytes:
        return hmac.digest(self.secret, _ACTOR + actor.encode(), "sha256")

    @property
    def signing_key(self) -> bytes:
        """The private key of the trainer's Ed25519 signatures, 32 bytes."""
        return hmac.digest(self.secret, _TRAINER, "sha256")

    @property
    def public_key(self) -> bytes:
        """The 32 bytes that verify the trainer's signatures."""
        key: bytes = _private_key(self.signing_key).public_key().public_bytes_raw()
        return key


def check_actor(actor: str) -> str:
    """Return ``actor``; raises UsageError if it is not a valid id of an actor."""
    if not is_name(actor):
        raise UsageError(
            f"{actor[:80]!r} cannot be the id of an actor", "use letters, digits, - and _, at most 64 of them"
        )
    return actor


def trainer_keys(master: MasterKey | None, password: str, task_id: str) -> TrainerKeys:
    """Return the trainer's keys for a task; without a master key, derived from the board's password."""
    return password_keys(password, task_id) if master is None else master.keys(task_id)


def actor_keys(token: JoinToken | None, password: str, task_id: str) -> ActorKeys:
    """Return an actor's keys for a task; without a token, derived from the board's password."""
    return password_keys(password, task_id) if token is None else token.keys(task_id)


def client_token(token: JoinToken | None, environment: Mapping[str, str] = os.environ) -> JoinToken | None:
    """Return the token with which a client verifies signatures: its own, or one of the trainer's master key."""
    master = read_master(environment) if token is None else None
    return token if master is None else master.token(_CLIENT)


def read_master(environment: Mapping[str, str] = os.environ) -> MasterKey | None:
    """Return the key that $RLEXP_BOARD_MASTER names; None if it is not set. Raises UsageError."""
    text = environment.get(MASTER_VARIABLE, "").strip()
    return parse_master(_contents(text)) if text else None


def read_token(environment: Mapping[str, str] = os.environ) -> JoinToken | None:
    """Return the token that $RLEXP_BOARD_TOKEN names; None if it is not set. Raises UsageError."""
    text = environment.get(TOKEN_VARIABLE, "").strip()
    return parse_token(_contents(text)) if text else None


def parse_master(text: str) -> MasterKey:
    """Parse a master key; raises UsageError, whose message has nothing of ``text``."""
    content = decode_line(text, MASTER_PREFIX, "master key")
    if len(content) != _KEY_BYTES:
        raise unreadable("master key")
    return MasterKey(content)


def parse_token(text: str) -> JoinToken:
    """Parse a join token; raises UsageError, whose message has nothing of ``text``."""
    content = decode_line(text, TOKEN_PREFIX, "join token")
    length = content[0] if content else 0
    actor = content[1 : 1 + length].decode("ascii", "replace")
    keys = content[1 + length :]
    if len(keys) != 2 * _KEY_BYTES or not is_name(actor):
        raise unreadable("join token")
    return JoinToken(actor, keys[:_KEY_BYTES], keys[_KEY_BYTES:])


def _contents(text: str) -> str:
    """Return ``text``, or the content of the file if it is ``@FILE``."""
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_MOST_BYTES).strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} with a key or token cannot be read: {type(error).__name__}") from error


def _private_key(private_key: bytes) -> Any:
    return _ed25519().Ed25519PrivateKey.from_private_bytes(private_key)


def _ed25519() -> ModuleType:
    """Return cryptography's module; raises UsageError if it is not installed. A board without tokens needs none."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        message = "keys and tokens of a board need cryptography, which is not installed"
        raise UsageError(message, "pip install 'rlexp[redis]'") from error
    return ed25519


def message_key(secret: bytes, task_id: str) -> bytes:
    """Return the key of messages of one task, 32 bytes, derived from ``secret``."""
    return hmac.digest(secret, _MESSAGE + task_id.encode(), "sha256")


def weights_statement(task_id: str, epoch: int, version: int, message: bytes) -> bytes:
    """Return the text that a trainer signs for weights: their identity, and the hash of the ``message`` with them."""
    return f"rlexp weights 1\n{task_id}\n{epoch}\n{version}\n{sha256(message).hexdigest()}".encode()


def signed_task(task: Task, keys: TrainerKeys) -> Task:
    """Return ``task`` with its trainer's signature in the description; unchanged without tokens."""
    task = replace(task, description=plain(task.description))
    signature = keys.sign(_task_statement(task))
    if not signature:
        return task
    return replace(task, description={**task.description, SIGNATURE: signature.hex()})


def task_signature(task: Task) -> bytes:
    """Return the signature of ``task``; empty if it has no valid one."""
    text = task.description.get(SIGNATURE)
    try:
        return bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


def accepts_task(task: Task, keys: ActorKeys) -> bool:
    """Return whether ``task`` is unchanged since its trainer announced it."""
    unsigned: Mapping[str, Any] = {name: value for name, value in task.description.items() if name != SIGNATURE}
    try:
        statement = _task_statement(replace(task, description=unsigned))
    except ValueError:  # NaN, which a trainer cannot have written
        return False
    return keys.accepts(statement, task_signature(task))


def _task_statement(task: Task) -> bytes:
    """Return the same text for equal tasks, for any order of their keys: boards keep a description as JSON."""
    content = [task.id, task.name, task.num_seats, task.description]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"rlexp task 1\n{sha256(text.encode()).hexdigest()}".encode()


def signed(content: bytes, task_id: str, name: str, keys: TrainerKeys) -> bytes:
    """Return the blob ``name`` of a task with ``content``; without tokens they are equal."""
    return content + keys.sign(_blob_statement(content, task_id, name))


def verified(blob: bytes, task_id: str, name: str, keys: ActorKeys) -> bytes:
    """Return the content of a blob; raises InvalidMessageError if the trainer of ``keys`` did not make it."""
    end = len(blob) - keys.num_signature_bytes
    content = blob[: max(end, 0)]
    if end < 0 or not keys.accepts(_blob_statement(content, task_id, name), blob[end:]):
        raise InvalidMessageError(f"the blob {name} is not signed by the task's trainer")
    return content


def _blob_statement(content: bytes, task_id: str, name: str) -> bytes:
    return f"rlexp blob 1\n{task_id}\n{name}\n{sha256(content).hexdigest()}".encode()
