"""A trainer's thread and its task: rows, the end, cancelling, and another trainer that follows."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from rlexp.board.messages.basics import BoardLostError, Task
from rlexp.board.messages.credentials import TrainerKeys
from rlexp.board.messages.payloads import Newer, blob_name
from rlexp.board.servers.board import Fenced, Lead, News, TaskStatus, TrainerBeat
from rlexp.board.trainer.link import LEASE_SLACK_S, BoardLink, TaskRecords
from rlexp.board.trainer.thread import BoardThread
from rlexp.config.keys.board import BoardConfig
from rlexp.errors import TrialError
from tests.lab.board import Clock, claimed, eventually, listed, taken
from tests.lab.memory_board import MemoryBoard, MemoryServer

TASK = Task("t1", "counting", 2, {"env": "x"}, "counting: {}")
LEASE_S = 15.0


class TrainersBoard(MemoryBoard):
    """Cannot be reached while the trainers' board is away; counts how often the lead was asked for."""

    def __init__(self, trainers: "Trainers") -> None:
        super().__init__(trainers.server)
        self._trainers = trainers
        self.num_leads = 0
        self.num_deletions = 0
        """Of the task that is to be led, each right before somebody leads it."""

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        if self.num_deletions:
            self.num_deletions -= 1
            self._trainers.server.lose_data()
        lead = super().lead(task_id, member, lease_s, epoch)
        self.num_leads += 1
        return lead

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        if self._trainers.is_away:
            raise BoardLostError("the board is away")
        return super().publish(lead, news)


class Trainers:
    """Threads of several trainers of one task."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = MemoryServer(self.clock)
        self.board = MemoryBoard(self.server)
        self.is_away = False
        """For the threads."""
        self._threads: list[BoardThread] = []
        self.board_of_last = TrainersBoard(self)

    def begin(self, member: str, epoch: int = 0, lead_wait_s: float = LEASE_SLACK_S) -> tuple[BoardThread, TaskRecords]:
        board, keys = TrainersBoard(self), TrainerKeys(b"key", b"key")
        self.board_of_last = board
        link = BoardLink(board, TASK.id, TASK.name, member, keys, epoch, TASK.file, lead_wait_s)
        config = BoardConfig(actors=2, beat_s=0.01, lease_s=LEASE_S, patience_s=60.0)
        thread = BoardThread(link, TASK, config, self.clock)
        thread.start()
        self._threads.append(thread)
        return thread, link.records

    def wait_for_weights(self, version: int) -> None:
        eventually(lambda: listed(self.board).weights_version == version)

    def close(self) -> None:
        for thread in self._threads:
            thread.stop()


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    trainers = Trainers()
    yield trainers
    trainers.close()


def error_of(thread: BoardThread) -> str:
    with pytest.raises(TrialError) as raised:
        eventually(lambda: thread.take(1))
    return raised.value.message


def test_rows_and_figures_are_put(trainers: Trainers) -> None:
    thread, records = trainers.begin("a")
    thread.put_figures({"actors": 1})
    for number in range(30):
        records.add_row(json.dumps(number), {"num_updates": number})
    eventually(lambda: len(trainers.board.rows(TASK.id, 0)) == 30)
    assert [json.loads(row) for _, row in trainers.board.rows(TASK.id, 0)] == list(range(30))
    eventually(lambda: listed(trainers.board).figures == {"actors": 1, "num_updates": 29})


def test_task_that_somebody_deletes_whenever_it_is_announced_again_goes_on(trainers: Trainers) -> None:
    thread, records = trainers.begin("a")
    eventually(lambda: records.lead)
    trainers.board_of_last.num_deletions = 3
    trainers.server.lose_data()
    eventually(lambda: not trainers.board_of_last.num_deletions and thread.state.is_connected)
    assert thread.take(1) == []
    assert listed(trainers.board).trainer == "a"


def test_rows_that_came_last_are_put_before_the_end(trainers: Trainers) -> None:
    thread, records = trainers.begin("a")
    eventually(lambda: records.lead)
    for number in range(50):
        records.add_row(str(number), {})
    thread.stop()
    assert len(trainers.board.rows(TASK.id, 0)) == 50
    assert listed(trainers.board).status is TaskStatus.ENDED


def test_two_versions_of_the_weights_are_kept_also_after_a_lost_connection(trainers: Trainers) -> None:
    thread, _ = trainers.begin("a")
    for version in range(4):
        if version == 2:
            trainers.is_away = True
            eventually(lambda: thread.state.num_lost_connections)
            trainers.is_away = False
        thread.put_weights(Newer(version, {"w": np.zeros(1, np.float32)}, None, 0))
        trainers.wait_for_weights(version)
    kept = [version for version in range(4) if trainers.board.get_blob(TASK.id, blob_name(version)) is not None]
    assert kept == [2, 3]


@pytest.mark.parametrize("status", [TaskStatus.ENDED, TaskStatus.FAILED])
def test_task_ends_as_the_trial_says(trainers: Trainers, status: TaskStatus) -> None:
    thread, records = trainers.begin("a")
    eventually(lambda: records.lead)
    records.end(status, "so")
    thread.stop()
    assert (listed(trainers.board).status, listed(trainers.board).reason) == (status, "so")


def test_task_that_is_handed_over_is_followed_at_once(trainers: Trainers) -> None:
    thread, records = trainers.begin("a")
    eventually(lambda: records.lead)
    records.end(TaskStatus.RUNNING)
    thread.stop()
    assert (listed(trainers.board).status, listed(trainers.board).trainer) == (TaskStatus.RUNNING, None)
    _, after = trainers.begin("b")
    eventually(lambda: after.lead)
    assert listed(trainers.board).trainer == "b"


def test_cancelled_task_is_told_and_stays_cancelled(trainers: Trainers) -> None:
    thread, records = trainers.begin("a")
    eventually(lambda: records.lead)
    assert not records.is_over
    trainers.board.cancel(TASK.id, "by anna")
    eventually(lambda: records.is_over)
    thread.stop()
    assert (listed(trainers.board).status, listed(trainers.board).reason) == (TaskStatus.CANCELLED, "by anna")


def test_submitted_task_is_trained_with_the_lead_that_was_handed_over(trainers: Trainers) -> None:
    trainers.board.submit(Task(TASK.id, TASK.name, 1, file=TASK.file))
    lead = taken(trainers.board, "host", LEASE_S)
    _, records = trainers.begin("host", lead.epoch)
    eventually(lambda: records.lead)
    assert records.lead == lead
    assert trainers.board.describe(TASK.id) == TASK


def test_successor_waits_for_the_lease_and_knows_what_was_received(trainers: Trainers) -> None:
    trainers.board.announce(TASK)
    dead = taken(trainers.board, "dead", LEASE_S)
    seat = claimed(trainers.board)
    trainers.board.publish(dead, News(0, {(seat.index, seat.epoch): 6}))
    thread, records = trainers.begin("b")
    eventually(lambda: any(task.trainer == "dead" for task in trainers.board.tasks()))
    assert records.lead is None
    trainers.clock.added_s += LEASE_S
    eventually(lambda: records.lead)
    eventually(lambda: thread.state.is_connected)
    assert thread.state.received == {(seat.index, seat.epoch): 6}


def test_trainer_that_comes_back_is_refused_and_writes_nothing(trainers: Trainers) -> None:
    zombie, records = trainers.begin("zombie")
    eventually(lambda: records.lead)
    old = records.lead
    assert old is not None
    trainers.board.give_up(old)
    lead = taken(trainers.board, "b", LEASE_S)
    records.add_row("from a former trainer", {"num_updates": 99})
    assert "has another trainer now" in error_of(zombie)
    zombie.stop()
    assert trainers.board.rows(TASK.id, 0) == []
    assert (listed(trainers.board).status, listed(trainers.board).trainer) == (TaskStatus.RUNNING, "b")
    assert listed(trainers.board).figures == {}
    assert trainers.board.put_rows(lead, ["row"])


def test_task_with_a_living_trainer_is_given_up_after_its_lease(trainers: Trainers) -> None:
    trainers.board.announce(TASK)
    taken(trainers.board, "a")
    second, _ = trainers.begin("b")

    def take() -> bool:
        trainers.clock.added_s += 1.0
        return bool(second.take(1))

    with pytest.raises(TrialError, match="has another trainer on the board"):
        eventually(take)
    assert listed(trainers.board).trainer == "a"


def test_trainer_may_wait_longer_for_one_that_may_still_be_there(trainers: Trainers) -> None:
    trainers.board.announce(TASK)
    former = taken(trainers.board, "a")
    patient, records = trainers.begin("b", lead_wait_s=60.0)
    board = trainers.board_of_last
    eventually(lambda: board.num_leads)
    trainers.clock.added_s += LEASE_S + 50.0
    before = board.num_leads
    eventually(lambda: board.num_leads > before + 1)
    assert (patient.take(1), records.lead) == ([], None)
    trainers.board.give_up(former)
    eventually(lambda: records.lead)


def test_task_that_is_over_is_not_begun(trainers: Trainers) -> None:
    trainers.board.announce(TASK)
    trainers.board.cancel(TASK.id, "")
    thread, _ = trainers.begin("a")
    assert "is over on the board" in error_of(thread)
