"""What only a real server shows: it ends, comes back empty, and lets each role do its part and nothing else."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from annotated_types import Le

from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import CHUNK_BYTES, BannedError, BoardError, BoardLostError, InvalidMessageError, Task
from rlexp.board.messages.window import ReceiveWindow, SendWindow
from rlexp.board.servers import open_board, redis_scripts
from rlexp.board.servers.board import Beat, Board, Lead, News, Seat, TaskStatus, TrainerBeat
from rlexp.board.servers.redis_queue import MAX_BYTES, RedisConnection
from rlexp.board.servers.redis_scripts import ACTOR, FIRST_WITH_READ_ONLY_KEYS, ROLES, TRAINER
from rlexp.config.keys.board import BoardConfig
from rlexp.errors import RlexpError
from tests.lab.board import LEASE_S, claimed, kept, led, published
from tests.lab.brokers import RedisServer, running_redis

TASK = Task("t1", "cartpole", 2, {"env": "CartPole-v1"})
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


def test_what_is_longer_than_it_may_be_is_not_read(boards: Mapping[str, Board], connections: Connections) -> None:
    trainer, actor = boards["trainer"], boards["actor"]
    lead = led(trainer, TASK)
    tenant = connections.by_role["actor"]
    tenant.call("RPUSH", f"{PREFIX}in:0", b"x" * (MAX_BYTES + 1), b"y", b"x" * (MAX_BYTES + 1), b"z")
    assert trainer.queue(TASK.id).receive(8, 5.0) == [b"", b"y", b"", b"z"]
    trainer.put_blob(lead, "weights-1", b"content")
    assert actor.get_blob(TASK.id, "weights-1") == b"content"
    with pytest.raises(InvalidMessageError, match="it has 7 bytes, more than 6"):
        actor.get_blob(TASK.id, "weights-1", 6)
    connections.by_role["trainer"].call("HSET", f"{PREFIX}blob:weights-1", "0", b"x" * (CHUNK_BYTES + 1))
    assert actor.get_blob(TASK.id, "weights-1") is None


def test_every_role_does_its_part_of_a_task(boards: Mapping[str, Board]) -> None:
    trainer, actor, client = boards["trainer"], boards["actor"], boards["client"]
    lead = led(trainer, TASK)
    assert [task.name for task in actor.tasks()] == ["cartpole"]
    assert actor.describe(TASK.id) == TASK
    assert trainer.put_blob(lead, "weights-1", b"weights")
    seat = claimed(actor)
    assert actor.beat(seat, [b"row"]) == Beat(TaskStatus.RUNNING, -1, -1, 1)
    assert trainer.queue(TASK.id).receive(4, 0.0) == [b"row"]
    assert trainer.queue(TASK.id).receive(4, 0.01) == []
    beat = published(trainer, lead, News(1, {(seat.index, seat.epoch): 0}, {"updates": 3}))
    assert [holder.member for holder in beat.seats] == ["actor"]
    assert actor.beat(seat) == Beat(TaskStatus.RUNNING, 1, 0, 0)
    assert actor.get_blob(TASK.id, "weights-1") == b"weights"
    assert [task.num_taken for task in client.tasks()] == [1]
    assert trainer.put_blob(lead, "result", b"checkpoint")
    assert client.get_blob(TASK.id, "result") == b"checkpoint"
    actor.release(seat)
    trainer.ban(lead, "actor")
    with pytest.raises(BannedError):
        actor.claim(TASK.id, "actor", LEASE_S)
    trainer.drop_blob(lead, "weights-1")
    trainer.finish(lead, TaskStatus.ENDED)
    assert client.tasks()[0].status is TaskStatus.ENDED


def test_client_submits_follows_and_cancels(boards: Mapping[str, Board]) -> None:
    trainer, client = boards["trainer"], boards["client"]
    client.submit(replace(TASK, file="cartpole: {}"))
    lead = led(trainer, TASK)
    described = trainer.describe(TASK.id)
    assert described is not None
    assert described.file == "cartpole: {}"
    assert trainer.put_rows(lead, ['{"updates": 1}'])
    assert client.rows(TASK.id, 0) == [(0, '{"updates": 1}')]
    assert client.tasks()[0].trainer == "trainer"
    assert client.cancel(TASK.id, "enough")
    assert published(trainer, lead).status is TaskStatus.CANCELLED
    trainer.give_up(lead)


ACTS_OF_OTHERS: dict[str, Callable[[Board, Lead], object]] = {
    "publish": lambda board, lead: board.publish(lead, News(9)),
    "put_blob": lambda board, lead: board.put_blob(lead, "weights-1", b"evil"),
    "drop_blob": lambda board, lead: board.drop_blob(lead, "weights-1"),
    "finish": lambda board, lead: board.finish(lead, TaskStatus.FAILED),
    "lead": lambda board, lead: board.lead(TASK.id, "evil", LEASE_S),
    "ban": lambda board, lead: board.ban(lead, "other"),
    "put_rows": lambda board, lead: board.put_rows(lead, ["{}"]),
    "give_up": lambda board, lead: board.give_up(lead),
    "submit": lambda board, lead: board.submit(Task("evil", "evil", 1)),
    "cancel": lambda board, lead: board.cancel(TASK.id, "evil"),
    "announce": lambda board, lead: board.announce(Task("evil", "evil", 1)),
    "receive": lambda board, lead: board.queue(TASK.id).receive(1, 0.0),
    "recovery": lambda board, lead: board.get_blob(TASK.id, "recovery"),
}


@pytest.mark.parametrize("act", ACTS_OF_OTHERS)
def test_actor_does_nothing_of_a_trainers(boards: Mapping[str, Board], act: str) -> None:
    trainer = boards["trainer"]
    lead = led(trainer, TASK)
    trainer.put_blob(lead, "weights-1", b"weights")
    with pytest.raises(BoardError, match=r"does not allow|not have the scripts"):
        ACTS_OF_OTHERS[act](boards["actor"], lead)
    assert trainer.get_blob(TASK.id, "weights-1") == b"weights"
    assert [task.id for task in trainer.tasks()] == [TASK.id]
    published(trainer, lead)


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
    lead = led(trainer, TASK)
    seat = claimed(actor)
    server.command("SCRIPT", "FLUSH")
    with pytest.raises(BoardLostError, match="not have the scripts"):
        actor.beat(seat, [b"row"])
    published(trainer, lead)
    kept(actor, seat)


def test_all_scripts_are_loaded() -> None:
    programs = {value for name, value in vars(redis_scripts).items() if isinstance(value, str) and name.isupper()}
    assert {text for text in programs if "ARGV:" in text} == set(redis_scripts.ALL)


def test_rules_have_no_password_and_older_servers_can_read_them(server: RedisServer) -> None:
    rules = ACTOR.rules("hidden", OLD)
    assert "hidden" not in rules
    assert "%" not in rules
    server.command("ACL", "SETUSER", "older", *rules.split())
    assert b"rlexp:{*}:seats" in server.command("ACL", "GETUSER", "older")
    assert ">PASSWORD_OF_TRAINER " in TRAINER.rules(None)


SHORT_RUN_S = 120.0


@pytest.fixture(scope="module")
def locked_server() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    with running_redis(password="hidden") as server:
        yield server


@pytest.fixture
def board(locked_server: RedisServer) -> Iterator[Board]:
    locked_server.command("FLUSHALL")
    board = open_board(parse_address(locked_server.url))
    yield board
    board.close()


def has_no_password(error: RlexpError) -> bool:
    return "hidden" not in f"{error.message} {error.hint}" and "\n" not in error.message


def test_server_that_ends_is_reported_and_found_again(board: Board, locked_server: RedisServer) -> None:
    lead, seat = led(board, TASK), claimed(board)
    locked_server.kill()
    for call in (board.tasks, lambda: board.beat(seat, [b"x"]), lambda: board.queue(TASK.id).receive(1, 9.0)):
        with pytest.raises(BoardLostError, match="cannot be reached") as caught:
            call()
        assert has_no_password(caught.value)
    locked_server.start()
    assert board.beat(seat) == Beat(None, -1, -1)
    assert board.publish(lead, News()) == TrainerBeat(None)
    board.announce(TASK, {seat.index: seat.epoch})
    assert board.lead(TASK.id, "trainer", LEASE_S, lead.epoch) == lead
    assert kept(board, seat).status is TaskStatus.RUNNING


def test_longest_lease_that_a_key_allows_can_be_read_after_the_clock_was_set_back(
    board: Board, locked_server: RedisServer
) -> None:
    (longest_s,) = (rule.le for rule in BoardConfig.model_fields["lease_s"].metadata if isinstance(rule, Le))
    assert isinstance(longest_s, int)
    board.announce(TASK)
    assert board.lead(TASK.id, "trainer", longest_s)
    assert board.claim(TASK.id, "actor", longest_s + 60.0)
    (summary,) = board.tasks()
    assert (summary.trainer, summary.taken) == ("trainer", (0,))
    assert board.unreadable.count == 0


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:hidden@"])
def test_wrong_password_is_refused(locked_server: RedisServer, login: str) -> None:
    board = open_board(parse_address(f"redis://{login}127.0.0.1:{locked_server.port}"))
    with pytest.raises(BoardError, match="password") as caught:
        board.tasks()
    assert not isinstance(caught.value, BoardLostError)
    assert has_no_password(caught.value)
    assert caught.value.hint is not None
    board.close()


def test_full_server_is_reported(board: Board, locked_server: RedisServer) -> None:
    board.announce(TASK)
    locked_server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(BoardLostError, match="takes nothing now"):
            board.queue(TASK.id).send([b"x"])
    finally:
        locked_server.command("CONFIG", "SET", "maxmemory", "0")


def test_what_comes_after_the_end_of_a_task_does_not_stay(board: Board, locked_server: RedisServer) -> None:
    lead, seat = led(board, TASK), claimed(board)
    board.finish(lead, TaskStatus.ENDED)
    board.beat(seat, [b"too late"])
    assert locked_server.command("LLEN", "rlexp:{t1}:in:0") == b":1\r\n"
    board.announce(replace(TASK, id="t2"))
    assert locked_server.command("LLEN", "rlexp:{t1}:in:0") == b":0\r\n"
    assert [task.id for task in board.tasks()] == ["t1", "t2"]


class Sender(threading.Thread):
    """An actor whose clock runs a hundred times as fast, so that standstills are short."""

    def __init__(self, board: Board, seat: Seat, count: int) -> None:
        super().__init__()
        self.window = SendWindow(32)
        self._board, self._seat, self._count = board, seat, count

    def run(self) -> None:
        ends_at = time.monotonic() + SHORT_RUN_S
        while self.window.got < self._count - 1 and time.monotonic() < ends_at:
            while self.window.has_room and self.window.next_number < self._count:
                self.window.put([b"%d %d" % (self._seat.index, self.window.next_number)])
            now_s = 100 * time.monotonic()
            beat = kept(self._board, self._seat, self.window.take(now_s))
            self.window.acknowledge(beat.got, now_s)


def test_nothing_is_lost_or_doubled_while_the_board_loses_its_data(board: Board, locked_server: RedisServer) -> None:
    count, num_losses = 400, 5
    lead, seats = led(board, TASK), [claimed(board, member) for member in "ab"]
    senders = [Sender(board, seat, count) for seat in seats]
    windows = [ReceiveWindow(32) for _ in seats]
    stored: list[bytes] = []
    for sender in senders:
        sender.start()
    ends_at = time.monotonic() + SHORT_RUN_S
    queue = board.queue(TASK.id)
    while any(sender.is_alive() for sender in senders) and time.monotonic() < ends_at:
        for message in queue.receive(16, 0.05):
            index, number = map(int, message.split())
            if windows[index].admit(number):
                stored.append(message)
        if num_losses and len(stored) > 100 * (6 - num_losses):
            num_losses -= 1
            locked_server.command("FLUSHALL")
        got = {(seat.index, seat.epoch): windows[seat.index].got for seat in seats}
        beat = board.publish(lead, News(0, got))
        if beat == TrainerBeat(None):
            board.announce(TASK, {seat.index: seat.epoch for seat in seats})
            assert board.lead(TASK.id, "trainer", LEASE_S, lead.epoch) == lead
    for sender in senders:
        sender.join(SHORT_RUN_S)
        assert sender.window.got == count - 1
    assert num_losses == 0
    assert len(stored) == len(set(stored)) == 2 * count
