"""Inbox: turns the messages of a task's queue into fragments: each one once, and no invalid ones.

Strikes counts invalid fragments and bans actors.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rlexp.board.messages.basics import InvalidMessageError
from rlexp.board.messages.credentials import TrainerKeys
from rlexp.board.messages.envelope import Header, Message, Parts, read_message_of_actor
from rlexp.board.messages.payloads import TRAINER, open_fragment
from rlexp.board.messages.window import ReceiveWindow
from rlexp.board.servers.board import actor_of
from rlexp.board.trainer.admission import Admission, AdmissionRules
from rlexp.board.trainer.link import BoardState
from rlexp.board.trainer.row_rules import RefusedError
from rlexp.config.keys.board import BoardConfig
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import FrameRows, SampleBatch

MOST_WAITING: Final = 1024
"""Most messages of seats that the board has not named yet; more are dropped, and come again."""
_FRAGMENTS_WAITING: Final = 16
"""Bytes of these messages, in fragments of the largest size."""
KEPT_REFUSALS: Final = 20
Opened = tuple[SampleBatch | FrameRows, SampleInfo]


class Strikes:
    """Counts invalid fragments by actor, over all its seats; owned by the inbox."""

    def __init__(self, max_strikes: int, refused_actors: Iterable[str] = ()) -> None:
        """Ban an actor after ``max_strikes`` of them, and ``refused_actors`` from the start."""
        self.num_refused = 0
        self.last_refusal = ""
        self._max_strikes = max_strikes
        self._strikes: Counter[str] = Counter()
        self._banned = dict.fromkeys(refused_actors)
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_REFUSALS)
        self._events: list[str] = []

    @property
    def banned(self) -> tuple[str, ...]:
        """The ids of the banned actors, in order of their bans; without tokens, their members."""
        return tuple(self._banned)

    def ban(self, actors: Iterable[str]) -> None:
        """Ban ``actors`` too, which an earlier process of the same task banned."""
        self._banned |= dict.fromkeys(actors)

    def refuse(self, why: str, header: Header | None = None) -> None:
        """Count a message for which nobody is blamed, as anyone may have sent it."""
        self.num_refused += 1
        self.last_refusal = why if header is None else f"seat {header.seat}: {why}"
        self._kept.append({"why": why, **({} if header is None else _said(header))})

    def strike(self, member: str, header: Header, why: str) -> None:
        """Count an invalid fragment of ``member``; ban it after too many."""
        self.refuse(why, header)
        actor = actor_of(member)
        self._strikes[actor] += 1
        if self._strikes[actor] == self._max_strikes and actor not in self._banned:
            self._banned[actor] = None
            event = f"actor {actor} is banned after {self._max_strikes} invalid fragments"
            self._events.append(f"{event}; the last one: {self.last_refusal}")

    def drain_events(self) -> list[str]:
        """Return the bans since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def drain_refusals(self) -> list[dict[str, Any]]:
        """Return the newest messages refused since the last call, at most KEPT_REFUSALS."""
        kept = list(self._kept)
        self._kept.clear()
        return kept


def _said(header: Header) -> dict[str, Any]:
    """Return the content of a header, without texts that its sender has chosen."""
    rows = next((column.shape[0] for column in header.columns if column.shape), 0)
    return {
        "actor": header.actor,
        "seat": header.seat,
        "epoch": header.epoch,
        "number": header.number,
        "weights_version": header.weights_version,
        "rows": rows,
        "bytes": header.raw_bytes,
    }


@dataclass
class _Sender:
    """The inbox's state of one seat and epoch."""

    epoch: int
    window: ReceiveWindow
    admission: Admission
    parts: Parts
    """Its own parts, so that an actor with many unfinished fragments displaces no other's."""


class Inbox:
    """Owns the receiving ends of the windows; used by one thread."""

    def __init__(
        self,
        task_id: str,
        keys: TrainerKeys,
        rules: AdmissionRules,
        config: BoardConfig,
        first_index: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report the fragments of seat i as worker ``first_index + i``'s."""
        self._task_id, self._keys, self._rules, self._first_index = task_id, keys, rules, first_index
        self._num_seats, self._window_size = config.actors, config.window
        self._max_bytes = int(config.max_fragment_mb * 1e6)
        self._strikes = Strikes(config.max_strikes, config.refused_actors)
        self._clock = clock
        self._senders: dict[int, _Sender] = {}
        self._waiting: deque[tuple[int, Message]] = deque()
        self._waiting_bytes = 0
        self._counts = dict.fromkeys(("fragments", "rows", "bytes", "repeated", "fenced", "lost"), 0)
        self._has_skipped = False
        self._versions: tuple[int, int] | None = None
        self._events: list[str] = []
        self._seen = dict(self._counts)
        self._seen_s = clock()

    @property
    def num_waiting(self) -> int:
        """Messages of seats and epochs that the board has not named yet."""
        return len(self._waiting)

    @property
    def banned(self) -> tuple[str, ...]:
        return self._strikes.banned

    def open(self, messages: Iterable[bytes], state: BoardState) -> list[Opened]:
        """Return the new fragments; count and leave out invalid, repeated and fenced ones."""
        self._skip_received(state.received)
        epochs = {holder.index: (holder.epoch, holder.member) for holder in state.seats}
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        opened = [self._open(message, epochs, beats, state) for beats, message in waiting]
        for each in messages:
            self._counts["bytes"] += len(each)
            try:
                message = read_message_of_actor(each, self._keys.key_of, self._max_bytes)
                header = message.header
                if header.task_id != self._task_id or not 0 <= header.seat < self._num_seats:
                    raise InvalidMessageError("a fragment of another task or seat")
                opened.append(self._open(message, epochs, state.num_beats, state))
            except InvalidMessageError as error:
                self._strikes.refuse(str(error))
        return [each for each in opened if each is not None]

    def publish(self, version: int) -> None:
        """Note that weights of ``version`` are published; versions grow."""
        first, _ = self._versions or (version, version)
        self._versions = first, version

    def got(self) -> dict[tuple[int, int], int]:
        """Return by seat and epoch how far its fragments were received without a gap."""
        return {(seat, sender.epoch): sender.window.got for seat, sender in self._senders.items()}

    def drain_events(self) -> list[str]:
        events, self._events = self._events, []
        return events + self._strikes.drain_events()

    def figures(self) -> dict[str, Any]:
        """Return the arrivals since the last call per second, and what was left out since the start."""
        now, counts = self._clock(), self._counts
        seconds = max(now - self._seen_s, 1e-9)
        rates = {name: (counts[name] - self._seen[name]) / seconds for name in ("fragments", "rows", "bytes")}
        self._seen, self._seen_s = dict(counts), now
        return {
            **{f"{name}_per_s": rate for name, rate in rates.items()},
            **{f"num_{name}": count for name, count in counts.items()},
            "num_refused": self._strikes.num_refused,
            "last_refusal": self._strikes.last_refusal,
            "refusals": self._strikes.drain_refusals(),
            "banned": list(self._strikes.banned),
        }

    def state(self) -> dict[str, Any]:
        windows = [
            {"seat": seat, "epoch": sender.epoch, "window": sender.window.state()}
            for seat, sender in sorted(self._senders.items())
        ]
        return {"task": self._task_id, "windows": windows, "banned": list(self._strikes.banned)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, if it was the same task."""
        if state["task"] != self._task_id:
            return
        self._strikes.ban(state.get("banned", ()))
        for each in state["windows"]:
            sender = self._new_sender(each["epoch"])
            sender.window.load(each["window"])
            self._senders[each["seat"]] = sender

    def _open(
        self, message: Message, epochs: Mapping[int, tuple[int, str]], num_beats: int, state: BoardState
    ) -> Opened | None:
        """Return the fragment that ``message`` completes, which came after ``num_beats`` answers of the board."""
        seat, epoch = message.header.seat, message.header.epoch
        named, member = epochs.get(seat, (-1, ""))
        if epoch > named:
            # The board has not named this holder yet, and may not have it; its next answer decides.
            has_room = len(self._waiting) < MOST_WAITING and self._waiting_bytes < _FRAGMENTS_WAITING * self._max_bytes
            if state.num_beats <= num_beats + 1 and has_room:
                self._waiting.append((num_beats, message))
                self._waiting_bytes += len(message.block)
            return None
        if epoch < named:
            self._counts["fenced"] += 1
            return None
        if self._keys.has_tokens and actor_of(member) != message.header.actor:
            self._strikes.refuse("sent by an actor that does not hold the seat", message.header)
            return None
        sender = self._senders.get(seat)
        if sender is None or sender.epoch != epoch:
            sender = self._senders[seat] = self._new_sender(epoch)
        try:
            whole = sender.parts.add(message)
        except InvalidMessageError as error:
            self._strikes.refuse(str(error), message.header)
            return None
        return None if whole is None else self._admit(sender, whole, member, state.first_epoch)

    def _new_sender(self, epoch: int) -> _Sender:
        admission = Admission(self._rules, self._clock)
        parts = Parts(4 * self._max_bytes, 2 * self._window_size)
        return _Sender(epoch, ReceiveWindow(self._window_size), admission, parts)

    def _admit(self, sender: _Sender, message: Message, member: str, first_epoch: int) -> Opened | None:
        header, window = message.header, sender.window
        # The sender has at most a window's size beyond what a trainer has confirmed, so earlier fragments are skipped.
        # That matters only if an earlier process confirmed more than is in the checkpoint with which this one began.
        self._counts["lost"] += window.advance(header.number - window.size)
        if not window.admit(header.number):  # a refused one is admitted too, as it would be wrong again
            self._counts["repeated"] += 1
            return None
        if actor_of(member) in self._strikes.banned:
            self._strikes.refuse("sent by a banned actor", header)
            return None
        try:
            rows, info = open_fragment(message, self._first_index + header.seat)
            if self._rules.has_policy_lag:
                info = replace(info, weights_version=self._followed_version(header, first_epoch))
            sender.admission.check(rows, info, header.number)
        except (InvalidMessageError, RefusedError) as error:
            self._strikes.strike(member, header, str(error))
            return None
        self._counts["fragments"] += 1
        self._counts["rows"] += rows.count
        return rows, info

    def _followed_version(self, header: Header, first_epoch: int) -> int:
        """Return the version of the learner that acted, by whose age a fragment is too old.

        Weights of an earlier trainer count as those with which this process began: both learned alike until then.
        """
        first, newest = self._versions or (0, 0)
        version, epoch = header.weights_version, header.info.get(TRAINER)
        is_own = type(epoch) is int and epoch >= first_epoch
        if version < 0 or (is_own and version > newest):
            raise RefusedError("it acted with weights that this trainer has not published")
        return version if is_own else min(version, first)

    def _skip_received(self, received: Mapping[tuple[int, int], int]) -> None:
        """Skip, once, the fragments that an earlier trainer confirmed, as their senders do not have them any more."""
        if self._has_skipped or not received:
            return
        self._has_skipped, before = True, self._counts["lost"]
        for (seat, epoch), number in received.items():
            sender = self._senders.get(seat)
            if not 0 <= seat < self._num_seats or (sender is not None and sender.epoch > epoch):
                continue
            if sender is None or sender.epoch < epoch:
                sender = self._senders[seat] = self._new_sender(epoch)
            self._counts["lost"] += sender.window.advance(number)
        if num_lost := self._counts["lost"] - before:
            fragments = "fragment is" if num_lost == 1 else "fragments are"
            self._events.append(f"{num_lost:,} {fragments} lost: an earlier trainer got them after its last checkpoint")
