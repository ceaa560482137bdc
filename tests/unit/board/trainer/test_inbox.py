"""The trainer's inbox: each fragment once, none that is invalid, of another epoch, or of whoever has no right."""

from __future__ import annotations

import hmac
import json
import pickle
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest

from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import ActorKeys, MasterKey, TrainerKeys, password_keys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import Newer, blob_name, seal_fragment, seal_weights
from rlexp.board.servers.board import SeatHolder
from rlexp.board.trainer.inbox import KEPT_REFUSALS, MOST_WAITING, Inbox
from rlexp.board.trainer.link import BoardState
from rlexp.sample_batch import SampleBatch
from tests.lab.board import EPOCH, MAX_BYTES, TASK, first_numbers, inbox, info_of, led, rows_of, sealed, state_of
from tests.lab.checkpoints import Bomb
from tests.lab.memory_board import MemoryBoard, MemoryServer

MASTER = MasterKey(bytes(range(32)))
TRAINER = MASTER.keys(TASK)
ALICE, BOB = (MASTER.token(name).keys(TASK) for name in ("alice", "bob"))
HELD = BoardState(
    num_beats=1,
    seats=(SeatHolder(0, EPOCH, "alice/host", 10.0), SeatHolder(1, EPOCH + 1, "bob/host", 10.0)),
    is_connected=True,
)
SHAPES = {"w": (2, 3)}
BAD_ROWS = rows_of(0, actions=np.full(4, 9))


def impostor(actor: str, key: bytes) -> ActorKeys:
    """Return the keys of one who says to be ``actor`` and signs with ``key``."""
    return ActorKeys(key, b"", actor)


def opened(box: Inbox, *messages: bytes, state: BoardState = HELD) -> list[int]:
    return first_numbers(box.open(messages, state))  # type: ignore[arg-type]


def message_of(keys: ActorKeys, block: bytes = b"", **changes: Any) -> bytes:
    """Return a message with any header, rightly signed by one who has ``keys``."""
    content = {"v": 1, "task": TASK, "seat": 1, "epoch": EPOCH + 1, "number": 0, "weights": 0, "part": 0, "parts": 1}
    header = {**content, "columns": [], "info": {}, "raw_bytes": 0, "actor": keys.actor, **changes}
    text = json.dumps(header).encode()
    signed = b"RLX1" + struct.pack("<I", len(text)) + text + block
    return signed + hmac.digest(keys.key, signed, "sha256")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (password_keys("secret", TASK), "sent without a token"),
        (password_keys("", TASK), "sent without a token"),
        (impostor("alice", password_keys("secret", TASK).key), "wrong signature"),
        (impostor("alice", BOB.key), "wrong signature"),
        (impostor("alice", MasterKey.new().token("alice").keys(TASK).key), "wrong signature"),
        (impostor("alice", MASTER.token("alice").keys("another-task").key), "wrong signature"),
        (impostor("../alice", ALICE.key), "unknown id"),
        (BOB, "does not hold the seat"),
    ],
    ids=["password", "no password", "password as alice", "bob as alice", "master", "task", "id", "bob's own key"],
)
def test_nobody_else_sends_for_a_seat(keys: ActorKeys, why: str) -> None:
    box = inbox(keys=TRAINER, max_strikes=1)
    assert opened(box, *sealed(0, keys=keys)) == []
    assert why in box.figures()["last_refusal"]
    assert box.banned == ()
    assert opened(box, *sealed(0, keys=ALICE)) == [0]


def test_message_of_another_is_not_taken_twice_and_not_for_an_older_epoch() -> None:
    box, (captured,) = inbox(keys=TRAINER), sealed(0, keys=ALICE)
    assert opened(box, captured, captured) == [0]
    later = BoardState(num_beats=2, seats=(SeatHolder(0, EPOCH + 5, "alice/host", 10.0),), is_connected=True)
    assert opened(box, captured, state=later) == []
    assert (box.figures()["num_repeated"], box.figures()["num_fenced"]) == (1, 1)


def test_part_of_another_does_not_enter_a_fragment() -> None:
    box = inbox(keys=TRAINER)
    assert opened(box, message_of(BOB, b"x", seat=0, epoch=EPOCH, parts=2)) == []
    assert opened(box, *sealed(0, keys=ALICE)) == [0]


def test_parts_without_end_displace_no_other_actors() -> None:
    obs = np.random.default_rng(0).uniform(0, 4, (20, 2)).astype(np.float32)
    box, rows = inbox(keys=TRAINER), rows_of(0, count=20, obs=obs)
    header = Header(TASK, 0, EPOCH, 0, actor="alice")
    first, *rest = seal_fragment(header, rows, info_of(rows), ALICE.key, 550)
    assert rest
    assert opened(box, first) == []
    begun = [message_of(BOB, bytes(MAX_BYTES // 2), number=number, parts=2) for number in range(20)]
    assert opened(box, *begun) == []
    assert opened(box, *rest) == [0]


def test_contents_that_are_no_fragment_are_refused_with_a_strike(tmp_path: Path) -> None:
    bomb = lz4.block.compress(bytes(64 << 20), store_size=False)
    columns = [["obs", "float32", [4, 2]], ["actions", "int64", [4]]]
    pickled = pickle.dumps(Bomb(tmp_path / "unpickled"))
    size = len(pickled)
    attacks = [
        sealed(0, BAD_ROWS, seat=1, epoch=EPOCH + 1, keys=BOB)[0],
        sealed(1, rows_of(0, obs=np.full((4, 2), np.nan, np.float32)), seat=1, epoch=EPOCH + 1, keys=BOB)[0],
        message_of(BOB, bomb, number=2, columns=columns, raw_bytes=64),
        message_of(BOB, pickled, number=3, columns=columns, raw_bytes=64),
        message_of(BOB, lz4.block.compress(pickled), number=4, columns=[["obs", "int8", [size]]], raw_bytes=size),
    ]
    box = inbox(keys=TRAINER, max_strikes=len(attacks), window=8)
    assert opened(box, *attacks[:-1]) == []
    assert list(box.banned) == []
    assert opened(box, attacks[-1]) == []
    assert list(box.banned) == ["bob"]
    assert not (tmp_path / "unpickled").exists()


def test_sizes_are_bounded_before_anything_is_unpacked() -> None:
    box = inbox(keys=TRAINER)
    columns = [["obs", "float64", [1 << 20, 1 << 20]]]
    assert opened(box, message_of(BOB, b"", columns=columns, raw_bytes=1 << 43), pickle.dumps([1])) == []
    whys = [refusal["why"] for refusal in box.figures()["refusals"]]
    assert whys == [f"{1 << 43} bytes of arrays; at most {MAX_BYTES} are allowed", "not a message of rlexp"]


def test_strikes_are_those_of_an_actor_whatever_its_seat() -> None:
    box = inbox(keys=TRAINER, max_strikes=2)
    opened(box, *sealed(0, BAD_ROWS, seat=1, epoch=EPOCH + 1, keys=BOB))
    seats = (SeatHolder(0, EPOCH + 9, "bob/elsewhere", 10.0),)
    again = BoardState(num_beats=2, seats=seats, is_connected=True)
    opened(box, *sealed(0, BAD_ROWS, epoch=EPOCH + 9, keys=BOB), state=again)
    assert box.banned == ("bob",)
    assert opened(box, *sealed(1, epoch=EPOCH + 9, keys=BOB), state=again) == []
    assert box.figures()["last_refusal"] == "seat 0: sent by a banned actor"


def test_ban_is_kept_with_the_state_of_the_task() -> None:
    before, after = (inbox(keys=TRAINER, max_strikes=1) for _ in range(2))
    opened(before, *sealed(0, BAD_ROWS, keys=ALICE))
    after.load(json.loads(json.dumps(before.state())))
    assert after.banned == ("alice",)


def test_headers_of_the_newest_refusals_are_reported_once() -> None:
    box = inbox(keys=TRAINER, max_strikes=100, window=64)
    messages = [sealed(number, BAD_ROWS, keys=ALICE)[0] for number in range(KEPT_REFUSALS + 5)]
    opened(box, *messages)
    refusals = box.figures()["refusals"]
    assert [refusal["number"] for refusal in refusals] == list(range(5, KEPT_REFUSALS + 5))
    assert refusals[0] == {
        "why": "actions is above its highest value",
        "actor": "alice",
        "seat": 0,
        "epoch": EPOCH,
        "number": 5,
        "weights_version": 3,
        "rows": 4,
        "bytes": refusals[0]["bytes"],
    }
    assert box.figures()["refusals"] == []


def test_flood_keeps_nobody_out_and_fills_no_memory() -> None:
    box = inbox(keys=TRAINER, window=64)
    strangers = [message_of(BOB, epoch=EPOCH + 2 + number) for number in range(MOST_WAITING + 500)]
    noise = [sealed(0, keys=password_keys("secret", TASK))[0]] * 500 + [b"RLX1" + bytes(100)] * 500
    good = [sealed(number, keys=ALICE)[0] for number in range(20)]
    mixed = [
        message for index, message in enumerate(good) for message in (*noise[50 * index : 50 * index + 50], message)
    ]
    assert opened(box, *strangers, *mixed) == list(range(20))
    assert box.num_waiting == MOST_WAITING
    assert box.figures()["num_refused"] == len(noise)
    assert len(box.got()) == 1


def test_long_messages_of_unnamed_seats_wait_up_to_a_bound() -> None:
    box = inbox(window=64)
    noise = np.random.default_rng(0).random((100_000, 2), np.float32)
    (message,) = sealed(0, SampleBatch({"obs": noise}), epoch=EPOCH + 2)
    opened(box, *[message] * 40)
    assert 15 * MAX_BYTES < box.num_waiting * len(message) < 18 * MAX_BYTES


class Weights:
    """A board on which anyone may put anything, as one who has its password can, and an actor with a token."""

    def __init__(self, keys: ActorKeys = ALICE) -> None:
        self.board = MemoryBoard(MemoryServer())
        self.lead = led(self.board, Task(TASK, "small", 2), "anyone")
        self.feed = WeightsFeed(self.board, TASK, keys, MAX_BYTES, SHAPES)

    def put(self, blob: bytes, version: int) -> int:
        """Show the actor ``blob`` as weights of ``version``; return which it acts with afterwards."""
        self.board.put_blob(self.lead, blob_name(version), blob)
        self.feed.fetch(version)
        return self.feed.version


def weights(version: int, keys: TrainerKeys = TRAINER, epoch: int = 5, task: str = TASK, **arrays: Any) -> bytes:
    return seal_weights(task, epoch, Newer(version, arrays or {"w": np.ones((2, 3), np.float32)}, None, 0), keys)


def test_signed_weights_are_taken() -> None:
    shown = Weights()
    assert [shown.put(weights(version), version) for version in (3, 7)] == [3, 7]
    assert shown.put(weights(1, epoch=6), 1) == 1  # a later trainer that continues from a checkpoint
    assert shown.feed.num_refused == 0


def with_signature_of(blob: bytes, other: bytes) -> bytes:
    return blob[:-64] + other[-64:]


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (weights(9, password_keys("secret", TASK)), "too long"),  # its end is read as the trainer's signature
        (weights(9, TrainerKeys(TRAINER.published_key, TRAINER.published_key)), "too long"),
        (weights(9, TrainerKeys(TRAINER.published_key, TRAINER.published_key)) + bytes(64), "not signed"),
        (weights(9, MasterKey.new().keys(TASK)), "not signed"),
        (with_signature_of(weights(9), weights(8)), "not signed"),
        (weights(8), "not signed"),
        (weights(9, task="another", keys=MASTER.keys("another")), "wrong signature"),
        (weights(9, epoch=4), "older"),
        (weights(9, w=np.ones((3, 2), np.float32)), "another network"),
        (weights(9, v=np.ones((2, 3), np.float32)), "another network"),
        (weights(9, w=np.ones((2, 3), np.int32)), "another dtype"),
        (weights(9, w=np.full((2, 3), np.inf, np.float32)), "not finite"),
        (pickle.dumps({"w": 1}), "not a message"),
        (b"", "not a message"),
    ],
    ids=[
        *("password", "unsigned", "zeros", "master", "moved", "version", "task", "epoch"),
        *("shape", "name", "dtype", "infinite", "pickle", "empty"),
    ],
)
def test_other_weights_are_refused(blob: bytes, why: str) -> None:
    shown = Weights()
    assert shown.put(weights(7), 7) == 7
    assert shown.put(blob, 9) == 7
    assert shown.feed.num_refused == 1
    assert why in shown.feed.refusal


def test_older_weights_are_not_taken_again() -> None:
    shown = Weights()
    older = weights(3)
    assert shown.put(weights(7), 7) == 7
    assert shown.put(older, 3) == 7
    assert "older" in shown.feed.refusal


def test_fragment_arrives_with_its_report_and_the_index_of_its_seat() -> None:
    box = inbox()
    ((rows, info),) = box.open(sealed(0, seat=1, epoch=EPOCH + 1), HELD)
    assert isinstance(rows, SampleBatch)
    assert rows["obs"].tolist() == rows_of(0)["obs"].tolist()
    assert (info.worker_index, info.num_rows, info.num_env_steps, info.weights_version) == (6, 4, 4, 3)
    assert info.episodes.returns.tolist() == [1.5]
    assert info.time.stepping_s == 0.5
    assert box.got() == {(1, EPOCH + 1): 0}


def test_repeated_and_reordered_fragments_are_opened_once() -> None:
    box, rng = inbox(window=8), random.Random(0)
    messages = [message for number in range(8) for message in sealed(number)] * 3
    rng.shuffle(messages)
    assert sorted(opened(box, *messages)) == list(range(8))
    assert box.got() == {(0, EPOCH): 7}
    assert box.figures()["num_repeated"] == 16


def test_fragment_of_a_new_holder_waits_until_the_board_names_it() -> None:
    box = inbox()
    assert box.open(sealed(0, epoch=EPOCH + 9), state_of(EPOCH)) == []
    assert box.num_waiting == 1
    assert len(box.open([], state_of(EPOCH + 9, num_beats=2))) == 1
    assert box.num_waiting == 0


def test_fragment_of_a_holder_that_the_board_does_not_name_is_dropped() -> None:
    box = inbox()
    box.open(sealed(0, epoch=EPOCH + 9), state_of(EPOCH))
    for beats in (2, 3):
        assert box.open([], state_of(EPOCH, num_beats=beats)) == []
    assert box.num_waiting == 0


def test_wrong_key_damage_and_foreign_tasks_are_refused() -> None:
    box = inbox()
    (good,) = sealed(0)
    damaged = good[:-40] + bytes([good[-40] ^ 1]) + good[-39:]
    (strange,) = sealed(0, keys=password_keys("another", TASK))
    assert opened(box, strange, damaged, b"", b"\x80\x04.", *sealed(0, seat=9)) == []
    assert box.figures()["num_refused"] == 5


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(0, obs=np.full((4, 2), np.nan, np.float32)),
        rows_of(0, obs=np.full((4, 2), 1e6, np.float32)),
        rows_of(0, obs=np.zeros((4, 3), np.float32)),
        rows_of(0, obs=np.zeros((4, 2), np.float64)),
        rows_of(0, actions=np.full(4, 4)),
        rows_of(0, more=np.zeros(4)),
        rows_of(0, count=21),
    ],
    ids=["nan", "outside", "shape", "dtype", "action", "column", "length"],
)
def test_invalid_fragment_is_consumed_with_a_strike(rows: SampleBatch) -> None:
    box = inbox()
    assert opened(box, *sealed(0, rows)) == []
    assert box.got() == {(0, EPOCH): 0}
    assert box.figures()["num_refused"] == 1
    assert opened(box, *sealed(1)) == [1]


def test_actor_is_banned_after_its_strikes() -> None:
    box = inbox(max_strikes=2)
    bad = rows_of(0, actions=np.full(4, 4))
    opened(box, *sealed(0, bad), *sealed(1, bad))
    (event,) = box.drain_events()
    assert "alice is banned after 2 invalid fragments" in event
    assert opened(box, *sealed(2)) == []
    assert opened(box, *sealed(0, seat=1, epoch=EPOCH + 1)) == [0]


def test_restored_inbox_opens_nothing_twice() -> None:
    before, after = inbox(), inbox()
    opened(before, *sealed(0), *sealed(1), *sealed(3))
    after.load(before.state())
    assert opened(after, *sealed(1), *sealed(2), *sealed(3), *sealed(4)) == [2, 4]
    assert after.got() == {(0, EPOCH): 4}


def test_trainer_that_confirmed_more_than_its_checkpoint_knows_goes_on() -> None:
    """The actor has forgotten what was confirmed: it sends at most a window beyond that."""
    box = inbox(window=4)
    assert opened(box, *sealed(20), *sealed(21), *sealed(22), *sealed(23)) == [20, 21, 22, 23]
    assert box.got() == {(0, EPOCH): 23}
    assert box.figures()["num_lost"] == 20


def test_what_an_earlier_trainer_confirmed_is_lost_and_not_waited_for() -> None:
    before = inbox(window=4)
    assert opened(before, *sealed(0), *sealed(1), *sealed(3)) == [0, 1, 3]
    after = inbox(window=4)
    after.load(before.state())
    # Its actor sends from the next fragment on: it has nothing before it any more.
    state = replace(HELD, received={(0, EPOCH): 5, (1, EPOCH + 1): 2, (9, EPOCH): 7})
    assert opened(after, *sealed(5), *sealed(6), state=state) == [6]
    assert after.got() == {(0, EPOCH): 6, (1, EPOCH + 1): 2}
    assert after.figures()["num_lost"] == 3 + 3  # 2, 4 and 5 of the first seat, all of the second
    assert after.drain_events() == ["6 fragments are lost: an earlier trainer got them after its last checkpoint"]
    after.open(sealed(7), state)
    assert after.figures()["num_lost"] == 6


def test_trainer_that_knows_more_than_the_board_loses_nothing() -> None:
    before = inbox(window=4)
    opened(before, *sealed(0), *sealed(1))
    after = inbox(window=4)
    after.load(before.state())
    state = replace(HELD, received={(0, EPOCH): 0, (1, EPOCH): 3})
    assert opened(after, *sealed(1), *sealed(2), state=state) == [2]
    assert after.got()[0, EPOCH] == 2
    assert after.figures()["num_lost"] == 4  # of the holder of the second seat before the present one
