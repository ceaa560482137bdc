"""The trainer's inbox: each fragment once, none that is invalid, none of another epoch."""

import random
from dataclasses import replace

import numpy as np
import pytest

from rlexp.board.messages.credentials import SharedKeys
from rlexp.board.trainer.inbox import Inbox
from rlexp.sample_batch import SampleBatch
from tests.board_fragments import EPOCH, TASK, first_numbers, inbox, rows_of, sealed, state_of

HELD = state_of(EPOCH, EPOCH + 1)


def open_all(box: Inbox, messages: list[bytes]) -> list[int]:
    return first_numbers(box.open(messages, HELD))  # type: ignore[arg-type]


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
    assert sorted(open_all(box, messages)) == list(range(8))
    assert box.got() == {(0, EPOCH): 7}
    assert box.figures()["num_repeated"] == 16


def test_gap_holds_back_what_is_confirmed() -> None:
    box = inbox()
    assert open_all(box, [*sealed(0), *sealed(2)]) == [0, 2]
    assert box.got() == {(0, EPOCH): 0}
    assert open_all(box, sealed(1)) == [1]
    assert box.got() == {(0, EPOCH): 2}


def test_fragment_of_an_older_epoch_is_left_out() -> None:
    box = inbox()
    assert open_all(box, sealed(0, epoch=EPOCH - 1)) == []
    assert box.figures()["num_fenced"] == 1
    assert box.got() == {}


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
    assert (
        open_all(box, [*sealed(0, keys=SharedKeys.of("another", TASK)), damaged, b"", b"\x80\x04.", *sealed(0, seat=9)])
        == []
    )
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
    assert open_all(box, sealed(0, rows)) == []
    assert box.got() == {(0, EPOCH): 0}
    assert box.figures()["num_refused"] == 1
    assert open_all(box, sealed(1)) == [1]


def test_actor_is_banned_after_its_strikes() -> None:
    box = inbox(max_strikes=2)
    bad = rows_of(0, actions=np.full(4, 4))
    open_all(box, [*sealed(0, bad), *sealed(1, bad)])
    (event,) = box.drain_events()
    assert "actor-0 is banned after 2 invalid fragments" in event
    assert open_all(box, sealed(2)) == []
    assert open_all(box, sealed(0, seat=1, epoch=EPOCH + 1)) == [0]


def test_restored_inbox_opens_nothing_twice() -> None:
    before, after = inbox(), inbox()
    open_all(before, [*sealed(0), *sealed(1), *sealed(3)])
    after.load(before.state())
    assert open_all(after, [*sealed(1), *sealed(2), *sealed(3), *sealed(4)]) == [2, 4]
    assert after.got() == {(0, EPOCH): 4}


def test_trainer_that_confirmed_more_than_its_checkpoint_knows_goes_on() -> None:
    """The actor has forgotten what was confirmed: it sends at most a window beyond that."""
    box = inbox(window=4)
    assert open_all(box, [*sealed(20), *sealed(21), *sealed(22), *sealed(23)]) == [20, 21, 22, 23]
    assert box.got() == {(0, EPOCH): 23}
    assert box.figures()["num_lost"] == 20


def test_what_an_earlier_trainer_confirmed_is_lost_and_not_waited_for() -> None:
    before = inbox(window=4)
    assert open_all(before, [*sealed(0), *sealed(1), *sealed(3)]) == [0, 1, 3]
    after = inbox(window=4)
    after.load(before.state())
    # Its actor sends from the next fragment on: it has nothing before it any more.
    state = replace(HELD, received={(0, EPOCH): 5, (1, EPOCH + 1): 2, (9, EPOCH): 7})
    assert first_numbers(after.open([*sealed(5), *sealed(6)], state)) == [6]  # type: ignore[arg-type]
    assert after.got() == {(0, EPOCH): 6, (1, EPOCH + 1): 2}
    assert after.figures()["num_lost"] == 3 + 3  # 2, 4 and 5 of the first seat, all of the second
    assert after.drain_events() == ["6 fragments are lost: an earlier trainer got them after its last checkpoint"]
    after.open(sealed(7), state)
    assert after.figures()["num_lost"] == 6


def test_trainer_that_knows_more_than_the_board_loses_nothing() -> None:
    before = inbox(window=4)
    open_all(before, [*sealed(0), *sealed(1)])
    after = inbox(window=4)
    after.load(before.state())
    state = replace(HELD, received={(0, EPOCH): 0, (1, EPOCH): 3})
    assert first_numbers(after.open([*sealed(1), *sealed(2)], state)) == [2]  # type: ignore[arg-type]
    assert after.got()[0, EPOCH] == 2
    assert after.figures()["num_lost"] == 4  # of the holder of the second seat before the present one
