"""What each role may do on a real server with our access rules: its whole part of a task, and nothing else."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from rlexp.board.messages.address import parse_address
from rlexp.board.messages.errors import BannedError, BoardError, BoardLostError
from rlexp.board.messages.tasks import Task
from rlexp.board.servers import open_board, redis_scripts
from rlexp.board.servers.access import ACTOR, FIRST_WITH_READ_ONLY_KEYS, ROLES, TRAINER
from rlexp.board.servers.board import Beat, Board, Lead, News, TaskStatus, TrainerBeat
from rlexp.board.servers.redis_queue import RedisConnection
from tests.brokers import RedisServer, running_redis

TASK = Task("t1", "cartpole", 2, {"env": "CartPole-v1"})
LONG_S = 600.0
PREFIX = "rlexp:{t1}:"
OLD = (6, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    with running_redis() as server:
        if server.version < FIRST_WITH_READ_ONLY_KEYS:
            pytest.skip("Redis before 7.0 knows no keys that may only be read")
        for role in ROLES:
            server.command("ACL", "SETUSER", role.name, *role.rules(f"of-{role.name}").split())
        yield server


def url(server: RedisServer, role: str) -> str:
    return f"redis://{role}:of-{role}@127.0.0.1:{server.port}"


@pytest.fixture
def boards(server: RedisServer) -> Iterator[Mapping[str, Board]]:
    server.command("FLUSHALL")
    server.command("SCRIPT", "FLUSH")
    boards = {role.name: open_board(parse_address(url(server, role.name))) for role in ROLES}
    yield boards
    for board in boards.values():
        board.close()


@dataclass
class Connections:
    by_role: Mapping[str, RedisConnection]

    def refuse(self, role: str, *command: str) -> None:
        with pytest.raises(BoardError, match="does not allow"):
            self.by_role[role].call(*command)


@pytest.fixture
def connections(server: RedisServer) -> Iterator[Connections]:
    server.command("FLUSHALL")
    by_role = {role.name: RedisConnection(parse_address(url(server, role.name))) for role in ROLES}
    yield Connections(by_role)
    for connection in by_role.values():
        connection.close()


def begun(trainer: Board) -> Lead:
    trainer.announce(TASK)
    lead = trainer.lead(TASK.id, "trainer", LONG_S)
    assert lead is not None
    return lead


def test_every_role_does_its_part_of_a_task(boards: Mapping[str, Board]) -> None:
    trainer, actor, client = boards["trainer"], boards["actor"], boards["client"]
    lead = begun(trainer)
    assert [task.name for task in actor.tasks()] == ["cartpole"]
    assert actor.describe(TASK.id) == TASK
    assert trainer.put_blob(lead, "weights-1", b"weights")
    seat = actor.claim(TASK.id, "actor", LONG_S)
    assert seat is not None
    assert actor.beat(seat, [b"row"]) == Beat(TaskStatus.RUNNING, -1, -1, 1)
    assert trainer.queue(TASK.id).receive(4, 0.0) == [b"row"]
    assert trainer.queue(TASK.id).receive(4, 0.01) == []
    beat = trainer.publish(lead, News(1, {(seat.index, seat.epoch): 0}, {"updates": 3}))
    assert isinstance(beat, TrainerBeat)
    assert [holder.member for holder in beat.seats] == ["actor"]
    assert actor.beat(seat) == Beat(TaskStatus.RUNNING, 1, 0, 0)
    assert actor.get_blob(TASK.id, "weights-1") == b"weights"
    assert [task.num_taken for task in client.tasks()] == [1]
    assert trainer.put_blob(lead, "result", b"checkpoint")
    assert client.get_blob(TASK.id, "result") == b"checkpoint"
    actor.release(seat)
    trainer.ban(lead, "actor")
    with pytest.raises(BannedError):
        actor.claim(TASK.id, "actor", LONG_S)
    trainer.drop_blob(lead, "weights-1")
    trainer.finish(lead, TaskStatus.ENDED)
    assert client.tasks()[0].status is TaskStatus.ENDED


def test_client_submits_follows_and_cancels(boards: Mapping[str, Board]) -> None:
    trainer, client = boards["trainer"], boards["client"]
    client.submit(replace(TASK, file="cartpole: {}"))
    lead = begun(trainer)
    described = trainer.describe(TASK.id)
    assert described is not None
    assert described.file == "cartpole: {}"
    assert trainer.put_rows(lead, ['{"updates": 1}'])
    assert client.rows(TASK.id, 0) == [(0, '{"updates": 1}')]
    assert client.tasks()[0].trainer == "trainer"
    assert client.cancel(TASK.id, "enough")
    beat = trainer.publish(lead, News())
    assert isinstance(beat, TrainerBeat)
    assert beat.status is TaskStatus.CANCELLED
    trainer.give_up(lead)


@pytest.mark.parametrize(
    "call",
    [
        lambda board, lead: board.publish(lead, News(9)),
        lambda board, lead: board.put_blob(lead, "weights-1", b"evil"),
        lambda board, lead: board.drop_blob(lead, "weights-1"),
        lambda board, lead: board.finish(lead, TaskStatus.FAILED),
        lambda board, lead: board.lead(TASK.id, "evil", LONG_S),
        lambda board, lead: board.ban(lead, "other"),
        lambda board, lead: board.put_rows(lead, ["{}"]),
        lambda board, lead: board.give_up(lead),
        lambda board, lead: board.submit(Task("evil", "evil", 1)),
        lambda board, lead: board.cancel(TASK.id, "evil"),
        lambda board, lead: board.announce(Task("evil", "evil", 1)),
        lambda board, lead: board.queue(TASK.id).receive(1, 0.0),
        lambda board, lead: board.get_blob(TASK.id, "recovery"),
    ],
    ids=[
        "publish",
        "put_blob",
        "drop_blob",
        "finish",
        "lead",
        "ban",
        "put_rows",
        "give_up",
        "submit",
        "cancel",
        "announce",
        "receive",
        "recovery",
    ],
)
def test_actor_does_nothing_of_a_trainers(boards: Mapping[str, Board], call: Callable[[Board, Lead], object]) -> None:
    trainer = boards["trainer"]
    lead = begun(trainer)
    trainer.put_blob(lead, "weights-1", b"weights")
    with pytest.raises(BoardError, match=r"does not allow|not got the scripts"):
        call(boards["actor"], lead)
    assert trainer.get_blob(TASK.id, "weights-1") == b"weights"
    assert [task.id for task in trainer.tasks()] == [TASK.id]
    assert isinstance(trainer.publish(lead, News()), TrainerBeat)


@pytest.mark.parametrize("role", [role.name for role in ROLES])
@pytest.mark.parametrize(
    "command",
    [
        *["CONFIG GET dir", "FLUSHALL", "KEYS *", "SHUTDOWN", "ACL LIST", "MONITOR", "CLIENT KILL 0:0"],
        *["EVAL return(1) 0", "SET strange 1", "GET strange", "REPLICAOF h 1", "MODULE LIST", "SCRIPT FLUSH", "SAVE"],
    ],
)
def test_no_role_rules_the_server_or_reaches_other_keys(connections: Connections, role: str, command: str) -> None:
    connections.refuse(role, *command.split())


@pytest.mark.parametrize(
    "command",
    [
        "SCRIPT LOAD return(1)",
        f"HSET {PREFIX}task status ENDED",
        f"SET {PREFIX}trainer evil",
        f"HSET {PREFIX}blob:weights-1 head evil",
        f"LPOP {PREFIX}in:0",
        f"LRANGE {PREFIX}in:0 0 -1",
        f"DEL {PREFIX}seats",
        f"EXPIRE {PREFIX}seats 1",
        "SADD rlexp:tasks evil",
        f"RPUSH {PREFIX}seats x",
        f"HSET {PREFIX}in:0 x y",
        f"RPUSH {PREFIX}in:1 x",
        f"HDEL {PREFIX}seats 0",
        f"HSET {PREFIX}epochs 0 x",
        f"HSET {PREFIX}got 0:1 9",
    ],
)
def test_actor_reads_and_changes_nothing_of_others(connections: Connections, command: str) -> None:
    connections.refuse("actor", *command.split())


@pytest.mark.parametrize(
    "command",
    [
        *[f"SET {PREFIX}trainer evil", f"HSET {PREFIX}blob:result head evil", f"HSET {PREFIX}seats 0 evil"],
        *["HSET rlexp:tasks x y", "SREM rlexp:tasks t1", "EXPIRE rlexp:tasks 0", f"SADD {PREFIX}task x"],
        f"EXPIRE {PREFIX}trainer 0",
    ],
)
def test_client_changes_nothing_of_trainers_and_actors(connections: Connections, command: str) -> None:
    connections.refuse("client", *command.split())


def test_script_of_a_clients_own_has_no_other_rights(connections: Connections) -> None:
    client = connections.by_role["client"]
    sha = client.call("SCRIPT LOAD", f"return redis.call('SET', '{PREFIX}trainer', 'evil')")
    with pytest.raises(BoardError):
        client.call("EVALSHA", sha, 0)
    assert client.call("GET", f"{PREFIX}trainer") is None


def test_actor_waits_for_a_trainer_to_load_the_scripts(boards: Mapping[str, Board], server: RedisServer) -> None:
    trainer, actor = boards["trainer"], boards["actor"]
    lead = begun(trainer)
    seat = actor.claim(TASK.id, "actor", LONG_S)
    assert seat is not None
    server.command("SCRIPT", "FLUSH")
    with pytest.raises(BoardLostError, match="not got the scripts"):
        actor.beat(seat, [b"row"])
    trainer.publish(lead, News())
    assert isinstance(actor.beat(seat), Beat)


def test_all_scripts_are_loaded() -> None:
    programs = {value for name, value in vars(redis_scripts).items() if isinstance(value, str) and name.isupper()}
    assert {text for text in programs if "ARGV:" in text} == set(redis_scripts.ALL)


def test_rules_have_no_password_and_older_servers_can_read_them(server: RedisServer) -> None:
    rules = ACTOR.rules("hidden", OLD)
    assert "hidden" not in rules
    assert "%" not in rules
    server.command("ACL", "SETUSER", "older", *rules.split())
    assert b"rlexp:{*}:seats" in server.command("ACL", "GETUSER", "older")
    assert ">PASSWORD_OF_TRAINER " in TRAINER.template()
