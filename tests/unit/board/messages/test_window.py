"""The window over a pipe that loses, repeats and reorders: nothing is lost, nothing comes twice."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.board.messages.window import LONGEST_STANDSTILL_S, NOTHING_GOT, STANDSTILL_S, ReceiveWindow, SendWindow


def message(number: int) -> bytes:
    return b"%d" % number


def filled(size: int, count: int) -> SendWindow:
    window = SendWindow(size)
    for number in range(count):
        assert window.put([message(number)]) == number
    return window


@dataclass
class Pipe:
    """A queue that mistreats what is sent through it until its budget is used up."""

    random: random.Random
    loss: float
    repetition: float
    budget: int
    messages: list[bytes] = field(default_factory=list)

    def send(self, messages: list[bytes]) -> None:
        for sent in messages:
            if self._mistreats(self.loss):
                continue
            self.messages.extend([sent] * (2 if self._mistreats(self.repetition) else 1))

    def lose_all(self) -> None:
        if self._mistreats(1.0):
            self.messages.clear()

    def receive(self, limit: int) -> list[bytes]:
        self.random.shuffle(self.messages)
        taken, self.messages = self.messages[:limit], self.messages[limit:]
        return taken

    def _mistreats(self, probability: float) -> bool:
        if self.budget and self.random.random() < probability:
            self.budget -= 1
            return True
        return False


class Transfer:
    """An actor, a pipe and a trainer that goes back to its last checkpoint now and then."""

    def __init__(self, seed: int, size: int, count: int, loss: float, repetition: float) -> None:
        self.random = random.Random(seed)
        self.pipe = Pipe(self.random, loss, repetition, budget=200)
        self.sender = SendWindow(size)
        self.receiver = ReceiveWindow(size)
        self.count = count
        self.published = NOTHING_GOT
        self.stored: list[int] = []
        self.now_s = 0.0

    def act(self) -> None:
        while self.sender.has_room and self.sender.next_number < self.count:
            self.sender.put([message(self.sender.next_number)])
        self.pipe.send(self.sender.take(self.now_s))
        # An emptied board knows nothing until the trainer's next beat.
        seen = NOTHING_GOT if self.random.random() < 0.05 else self.published
        self.sender.acknowledge(seen, self.now_s)
        assert self.sender.num_kept <= self.sender.size

    def train(self) -> None:
        if self.random.random() < 0.02:
            self.pipe.lose_all()
        if self.random.random() < 0.3:  # no room in replay: nothing is taken
            return
        for received in self.pipe.receive(self.random.randint(1, 8)):
            if self.receiver.admit(int(received)):
                self.stored.append(int(received))
        if self.random.random() < 0.02:
            self.restart()
        self.published = max(self.published, self.receiver.got)

    def restart(self) -> None:
        """Go on from a checkpoint that was just written."""
        state = self.receiver.state()
        self.receiver = ReceiveWindow(self.sender.size)
        self.receiver.load(state)

    def run(self) -> None:
        for _ in range(100_000):
            if self.published == self.count - 1:
                return
            self.act()
            self.train()
            self.now_s += self.random.choice([0.05, 0.5, 5.0])
        raise AssertionError(f"stuck at {self.published} of {self.count}")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 40),
    count=st.integers(1, 150),
    loss=st.floats(0, 0.8),
    repetition=st.floats(0, 0.8),
)
def test_everything_comes_once(seed: int, size: int, count: int, loss: float, repetition: float) -> None:
    transfer = Transfer(seed, size, count, loss, repetition)
    transfer.run()
    assert sorted(transfer.stored) == list(range(count))
    transfer.sender.acknowledge(transfer.published, transfer.now_s)
    assert (transfer.sender.num_kept, transfer.sender.num_sent) == (0, count)


def test_sender_stops_at_its_size() -> None:
    window = filled(2, 2)
    assert not window.has_room
    with pytest.raises(ValueError, match="full"):
        window.put([b"2"])
    assert window.take(0.0) == [b"0", b"1"]
    assert window.take(0.1) == []
    window.acknowledge(0, 0.2)
    assert window.has_room
    window.put([b"2"])
    assert window.take(0.3) == [b"2"]
    assert (window.num_sent, window.num_sent_again) == (3, 0)


def test_parts_of_a_fragment_are_sent_together() -> None:
    window = SendWindow(4)
    window.put([b"a", b"b"])
    window.put([b"c"])
    assert window.take(0.0) == [b"a", b"b", b"c"]


def test_standstill_sends_again_after_twice_as_long_each_time() -> None:
    window = filled(8, 3)
    window.take(0.0)
    window.acknowledge(0, 1.0)
    again_at: list[float] = []
    now_s, patience_s = 1.0, STANDSTILL_S
    while len(again_at) < 6:
        now_s += 0.5
        if window.take(now_s):
            again_at.append(now_s)
    expected = []
    at_s = 1.0
    for _ in range(6):
        at_s += patience_s
        expected.append(at_s)
        patience_s = min(2 * patience_s, LONGEST_STANDSTILL_S)
    assert again_at == expected
    assert (window.num_sent, window.num_sent_again) == (3, 12)


def test_progress_makes_it_patient_anew() -> None:
    window = filled(8, 2)
    window.take(0.0)
    assert window.take(2.0) == [b"0", b"1"]
    window.acknowledge(0, 2.5)
    assert window.take(4.4) == []
    assert window.take(4.5) == [b"1"]


def test_queued_messages_are_not_sent_again_soon() -> None:
    window = filled(8, 1)
    window.take(0.0)
    assert window.take(LONGEST_STANDSTILL_S - 0.1, is_queued=True) == []
    assert window.take(LONGEST_STANDSTILL_S, is_queued=True) == [b"0"]


def test_slow_network_has_more_patience() -> None:
    window = filled(8, 1)
    window.take(0.0)
    assert window.take(3.9, round_trip_s=1.0) == []
    assert window.take(4.0, round_trip_s=1.0) == [b"0"]


def test_idle_time_is_no_standstill() -> None:
    window = filled(8, 1)
    window.take(0.0)
    window.acknowledge(0, 0.1)
    window.put([b"1"])
    assert window.take(100.0) == [b"1"]
    assert window.take(101.9) == []


def test_what_is_repeated_after_an_outage_is_due_again_soon() -> None:
    window = filled(8, 1)
    window.take(0.0)
    for now_s in (1.0, 3.0, 7.0, 15.0, 31.0):  # the queue is tried again
        window.repeat()
        assert window.take(now_s) == [b"0"]
    assert window.take(31.0 + STANDSTILL_S) == [b"0"]


def test_numbers_that_were_never_sent_are_not_acknowledged() -> None:
    window = filled(8, 2)
    window.acknowledge(5, 0.0)
    assert (window.num_kept, window.got) == (2, NOTHING_GOT)
    window.take(0.0)
    window.acknowledge(5, 0.0)
    assert (window.num_kept, window.got) == (0, 1)


def test_cleared_window_counts_what_it_gave_up() -> None:
    window = filled(8, 3)
    window.take(0.0)
    window.acknowledge(0, 0.0)
    assert window.clear() == 2
    assert window.take(100.0) == []


def test_gap_holds_got_back() -> None:
    window = ReceiveWindow(4)
    assert [window.admit(number) for number in (1, 2, 1)] == [True, True, False]
    assert window.got == NOTHING_GOT
    assert window.admit(0)
    assert window.got == 2
    assert not window.admit(0)


def test_numbers_beyond_twice_the_window_are_refused() -> None:
    window = ReceiveWindow(4)
    assert [window.admit(number) for number in (8, 7)] == [False, True]


def test_what_the_board_knows_is_not_taken_again() -> None:
    window = ReceiveWindow(4)
    for number in (0, 3, 4):
        assert window.admit(number)
    assert (window.advance(2), window.got) == (2, 4)
    assert (window.advance(1), window.got) == (0, 4)
    assert [window.admit(number) for number in (2, 4, 5)] == [False, False, True]
