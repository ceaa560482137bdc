"""What a run with a board refuses and announces, asks of its nodes, and hands to the process of its trial."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlexp.board.messages.address import (
    PASSWORD_VARIABLE,
    TASK_VARIABLE,
    BoardAddress,
    HandedTask,
    QueueAddress,
    handed_task,
)
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import MASTER_VARIABLE, MasterKey, password_keys
from rlexp.board.servers import open_board
from rlexp.board.task import new_task_id
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.trial import (
    AssignedTask,
    assigned_task,
    board_link,
    checked_board,
    loopback_notices,
    record_task,
    task_failure_reported,
    with_board,
)
from rlexp.cluster.probe import Question
from rlexp.cluster.room.machine import Cluster, ClusterNode, Machine
from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import UsageError
from rlexp.runs.record import RecordedError, Status, read_run_record
from rlexp.runs.run_directory import RunDirectory
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning.assignment import ASSIGNMENT, BoardSecrets, hand_over_secrets
from rlexp.tuning.cluster_trials import ClusterTrials
from tests.lab.board import listed, taken
from tests.lab.cluster import FakeNodes, make_trial, tune_trial
from tests.lab.trials import Notes

BOARD = BoardAddress("redis", "10.0.0.7", 6379, password="geheim")
QUEUE = QueueAddress("amqps", "10.0.0.8", 5671, username="me", password="geheim", ca_file="ca.pem")


def node(name: str, cpus: int = 4, is_driver: bool = False) -> ClusterNode:
    return ClusterNode(name, Machine(cpus, 0, 0, 0), is_driver=is_driver)


def test_nodes_are_asked_for_servers_client_libraries_and_certificates() -> None:
    board = BoardAddress("redis", "10.0.0.7", 6379, password="geheim", queue=QUEUE)
    question = with_board(Question(packages=("ale_py",)), board, {})
    assert question.packages == ("ale_py", "redis", "pika")
    assert list(question.servers.values()) == [("10.0.0.7", 6379), ("10.0.0.8", 5671)]
    assert question.files == (str(Path("ca.pem").absolute()),)
    assert question.hints["pika"] == "pip install 'rlexp[rabbitmq]' on every node"
    assert "every node reaches" in question.hints["the board at redis://10.0.0.7:6379"]
    assert "geheim" not in repr(question)


def test_keys_need_signatures_on_every_node() -> None:
    assert with_board(Question(), BOARD, {"RLEXP_BOARD_MASTER": "x"}).packages == ("cryptography", "redis")


def test_topic_of_google_is_no_server_of_its_own() -> None:
    board = BoardAddress("redis", "10.0.0.7", 6379, queue=QueueAddress("pubsub", "project", path="topic"))
    question = with_board(Question(), board, {})
    assert list(question.servers.values()) == [("10.0.0.7", 6379)]
    assert "google.pubsub_v1" in question.packages


def test_nothing_more_is_asked_without_a_board() -> None:
    assert with_board(Question(), None, {"RLEXP_BOARD_MASTER": "x"}) == Question()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_another_machine_on_each_node(host: str) -> None:
    board = BoardAddress("redis", host, 6379)
    (hint,) = [hint for name, hint in with_board(Question(), board, {}).hints.items() if "board at" in name]
    assert hint.startswith(f"a node means itself by {host}")
    several = Cluster((node("10.0.0.1", is_driver=True), node("10.0.0.2")))
    assert len(list(loopback_notices(board, several))) == 1


def test_no_notice_where_no_trial_can_be_elsewhere_or_the_address_is_of_the_network() -> None:
    local = BoardAddress("redis", "127.0.0.1", 6379)
    alone = Cluster((node("10.0.0.1", is_driver=True), node("10.0.0.2", cpus=0)))
    several = Cluster((node("10.0.0.1", is_driver=True), node("10.0.0.2")))
    assert list(loopback_notices(local, alone)) == []
    assert list(loopback_notices(BOARD, several)) == []
    assert list(loopback_notices(None, several)) == []


TASK = AssignedTask(BoardAddress("memory", "test-board-secrets"), "small-1", "host-1", 7)
SECRETS = {"RLEXP_BOARD_PASSWORD": "geheim", "RLEXP_QUEUE_PASSWORD": "other", "RLEXP_BOARD_MASTER": "rlexp-master-1-x"}


class FakeActor:
    """Keeps what it is called with, as Ray's handle of an actor sends it."""

    def __init__(self) -> None:
        self.taken: list[BoardSecrets] = []
        self.take_secrets = SimpleNamespace(remote=self.taken.append)


def trial_with(actor: Any, task: AssignedTask | None) -> Any:
    trial = tune_trial(make_trial(), actor)
    trial.config[ASSIGNMENT] = replace(trial.config[ASSIGNMENT], task=task)
    return trial


def test_only_what_the_board_needs_is_handed_over() -> None:
    actor = FakeActor()
    hand_over_secrets(trial_with(actor, TASK), False, {**SECRETS, "AWS_SECRET_ACCESS_KEY": "not this"})
    (taken,) = actor.taken
    assert taken.variables == SECRETS
    assert not [value for value in SECRETS.values() if value in repr(taken)]


def test_trial_without_a_board_is_handed_nothing() -> None:
    actor = FakeActor()
    hand_over_secrets(trial_with(actor, None), False, SECRETS)
    assert actor.taken == []


def test_each_process_of_a_trial_is_handed_the_secrets_and_whether_it_is_the_first(tmp_path: Path) -> None:
    actors = FakeActor(), FakeActor()
    with RunDirectory.create(tmp_path, "small", None, ["run"], overwrite=False) as directory:
        directory.start([make_trial()])
        trials = ClusterTrials(FakeNodes(), directory, QuietDisplay(io.StringIO()))
        for actor in actors:
            trials.begin(trial_with(actor, TASK))
        trials.close()
    assert [secrets.is_successor for actor in actors for secrets in actor.taken] == [False, True]


TASK_BOARD = BoardAddress("memory", "test-board-task")
NO_VARIABLES: Mapping[str, str] = {}


def trials_of(folder: Path, run: str = "APEX", **config: Any) -> tuple[Trial, ...]:
    file = folder / "experiment.yaml"
    file.write_text(to_yaml({"small": {"run": run, "env": "CartPole-v1", "config": config}}), encoding="utf-8")
    return load_plan([file]).trials


def test_one_trial_gets_a_note_that_says_how_to_join(tmp_path: Path) -> None:
    notes = Notes()
    assert checked_board(trials_of(tmp_path), TASK_BOARD, notes) == TASK_BOARD
    assert notes.texts == [f"actors join with: rlexp join {TASK_BOARD}"]


def test_password_is_not_kept_with_the_board(tmp_path: Path) -> None:
    notes = Notes()
    with_password = BoardAddress("memory", "test-board-task", password="geheim")
    assert checked_board(trials_of(tmp_path), with_password, notes) == TASK_BOARD
    assert notes.texts == [f"actors join with: rlexp join {TASK_BOARD}; {PASSWORD_VARIABLE} has its password"]


def test_note_names_the_user_of_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, notes = trials_of(tmp_path), Notes()
    board = BoardAddress("memory", "test-board-task", username="trainer", password="geheim")
    checked_board(trials, board, notes)
    assert "user trainer" in notes.texts[0]
    assert notes.texts[1] == "without --keys, actors need the same password as user trainer has"
    monkeypatch.setenv(MASTER_VARIABLE, MasterKey.new().to_text())
    checked_board(trials, board, notes)
    assert "rlexp join memory://actor@test-board-task --token @FILE" in notes.texts[2]
    assert notes.texts[2].endswith(f"{PASSWORD_VARIABLE} has the password of user actor")


def link_of(task: AssignedTask, environment: Mapping[str, str] = NO_VARIABLES) -> BoardLink:
    link = board_link(task, "small", environment)
    assert link is not None
    return link


def test_link_has_the_key_of_the_password_in_the_environment() -> None:
    link = link_of(AssignedTask(TASK_BOARD, "small-1"), {PASSWORD_VARIABLE: "geheim"})
    assert link.keys == password_keys("geheim", link.task_id)
    assert (link.task_id, link.name, link.epoch, link.file) == ("small-1", "small", 0, "")
    assert board_link(None, "small") is None


def test_each_process_of_a_trial_is_another_member_of_the_same_task() -> None:
    task = AssignedTask(TASK_BOARD, "small-1")
    first, second = link_of(task), link_of(task)
    assert first.task_id == second.task_id
    assert first.member != second.member


def test_handed_task_keeps_its_member_epoch_and_file() -> None:
    link = link_of(AssignedTask(TASK_BOARD, "small-1", "host-1", 7, "small: {}"))
    assert (link.member, link.epoch, link.file) == ("host-1", 7, "small: {}")


def test_successor_of_a_process_has_a_right_of_its_own_and_waits_for_it() -> None:
    task = AssignedTask(TASK_BOARD, "small-1", "host-1", 7, "small: {}")
    link, later = link_of(task), link_of(task.of_successor())
    assert (later.task_id, later.epoch, later.file) == ("small-1", 0, "small: {}")
    assert later.member != link.member
    assert later.lead_wait_s > 60.0 > link.lead_wait_s


class Run:
    """A run with one trial and a task on a board of its own."""

    def __init__(self, folder: Path) -> None:
        self.server = f"test-board-task-{folder.name}"
        self.address = BoardAddress("memory", self.server)
        self.trials = trials_of(folder)
        self.directory = RunDirectory.create(folder / "out", "run", None, [], overwrite=False)
        self.directory.write_experiments(["small: {}"], "")
        self.directory.start(self.trials)

    def task_of(self, environment: dict[str, str] | None = None) -> AssignedTask:
        record_task(self.directory, self.trials, self.address, environment or {})
        task = assigned_task(self.directory, self.trials[0], self.address, environment or {})
        assert task is not None
        return task


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    with run.directory:
        yield run


def test_run_that_is_resumed_continues_its_task_until_that_is_over(run: Run) -> None:
    first = run.task_of()
    board = open_board(run.address)
    board.announce(Task(first.id, "small", 1))
    assert run.task_of() == first
    recorded = read_run_record(run.directory.path).trials[0]
    assert (recorded.board_task, recorded.board) == (first.id, run.address.server)
    board.cancel(first.id, "")
    assert run.task_of().id != first.id


def test_run_without_a_board_has_no_task(run: Run) -> None:
    record_task(run.directory, run.trials, None)
    assert assigned_task(run.directory, run.trials[0], None) is None
    assert run.directory.record.trials[0].board_task is None


def test_run_of_a_submitted_task_is_that_task(run: Run) -> None:
    handed = HandedTask("given-1", 8, 1, "host with spaces")
    task = run.task_of({TASK_VARIABLE: handed.to_text()})
    assert task == AssignedTask(run.address, "given-1", "host with spaces", 8, "small: {}")
    recorded = read_run_record(run.directory.path).trials[0]
    assert (recorded.board_task, recorded.board) == ("given-1", run.address.server)


@pytest.mark.parametrize("text", ["", "a", "a b c d", "a:b 1 2 c", "a 1 2 "])
def test_handed_task_that_join_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=TASK_VARIABLE):
        handed_task({TASK_VARIABLE: text})


def test_failure_of_a_submitted_task_is_told_by_the_lead_that_was_handed_over(run: Run) -> None:
    board = open_board(run.address)
    board.submit(Task("given-1", "small", 1, file="small: {}"))
    lead = taken(board, "host", task_id="given-1")
    environment = {TASK_VARIABLE: HandedTask(lead.task_id, lead.epoch, 1, lead.member).to_text()}
    run.task_of(environment)
    with task_failure_reported(run.directory, run.trials, run.address, environment):
        run.directory.trial_status(run.trials[0], Status.ERROR, RecordedError("no memory left"))
    summary = listed(board)
    assert (summary.status, summary.reason) == ("FAILED", "no memory left")


@pytest.mark.parametrize(("status", "expected"), [(Status.ERROR, "FAILED"), (Status.STOPPED, "RUNNING")])
def test_board_learns_of_a_failure_only(run: Run, status: Status, expected: str) -> None:
    task, board = run.task_of(), open_board(run.address)
    board.announce(Task(task.id, "small", 1))
    with task_failure_reported(run.directory, run.trials, run.address, {}):
        run.directory.trial_status(run.trials[0], status, RecordedError("no memory left"))
    summary = listed(board)
    assert (summary.status, summary.reason) == (expected, "no memory left" if expected == "FAILED" else "")


@pytest.mark.parametrize(
    ("name", "start"), [("CartPole apex", "CartPole_apex-"), ("é/ü", "task-"), ("a" * 90, "a" * 50)]
)
def test_ids_of_tasks_begin_with_the_name_and_fit(name: str, start: str) -> None:
    task_id = new_task_id(name)
    assert task_id.startswith(start)
    assert len(task_id) <= 64


def test_several_trials_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="here are 2"):
        checked_board(trials_of(tmp_path, lr={"grid_search": [0.1, 0.2]}), TASK_BOARD, Notes())


@pytest.mark.parametrize(
    ("run", "config", "reason"),
    [("PPO", {}, "newest weights"), ("APEX", {"replay_storage": "shared_memory"}, "shared_memory")],
)
def test_what_actors_cannot_join_is_refused(run: str, config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        checked_board(trials_of(tmp_path, run, **config), TASK_BOARD, Notes())


def test_keys_of_a_board_without_one_have_a_note(tmp_path: Path) -> None:
    notes = Notes()
    assert checked_board(trials_of(tmp_path, board={"actors": 4}), None, notes) is None
    assert notes.texts == ["config.board has no effect without --board"]
    default, notes = BoardConfig().model_dump(), Notes()  # as in a run's resolved.yaml
    assert checked_board(trials_of(tmp_path, board=default), None, notes) is None
    assert notes.texts == []
