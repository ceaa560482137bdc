"""A real server of which every key of a task holds something else: readers leave it out, and the trainer mends it."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pytest
import redis

from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import MOST_SEATS, BannedError, Task, UnreadableError
from rlexp.board.servers import open_board
from rlexp.board.servers import redis as redis_board
from rlexp.board.servers.board import Beat, Board, News, TaskStatus
from tests.lab.board import LEASE_S, claimed, kept, led, published
from tests.lab.brokers import RedisServer

TASK = Task("t1", "cartpole", 3, {"protocol": 1, "env": "CartPole-v1"}, "cartpole: {}")
OTHER = Task("t2", "other", 1, {"protocol": 1})
PREFIX = "rlexp:{t1}:"
LATE = b"9" * 14
VALUES = (
    *(b"", b"x", b"foo bar", b"\xff\xfe\x00", b"\x1b[31mred\x07", b"\n\r\t", "é".encode("latin-1"), b"A" * 400_000),
    *(b"NaN", b"Infinity", b"1e400", b"-1e400", b"-1", b"0", b"0.5", b"true", b"null", b"1" * 5000, b"1" * 16, LATE),
    *(b"[]", b"{}", b"[1,", b'{"a":1,"a":2}', b'{"a":1e400}', b'{"a":NaN}', b'{"a":"\\ud800"}', b"[" * 100_000),
    *(b'{"a":' * 200 + b"1" + b"}" * 200, b'{"a":' + b"7" * 3000 + b"}", b'{"protocol":true}', b"0 0", b"0 0 "),
    *(LATE + b" 1 x", b"1 " + LATE + b" x", b"1 " + b"9" * 40 + b" x", b"1 2 \x1b[2J", b"-5 -5 x", b"5 " + b"x" * 999),
)
"""Of values and of names of fields, whatever they are for."""
FIELDS = {
    "task": ["name", "status", "reason", "seats", "announced", "submitted", "weights", "description", "file", "more"],
    "seats": ["0", "1", "7", "-1", "01", "foo", "\x1b[31m", str(MOST_SEATS), "9" * 30],
    "epochs": ["0", "foo"],
    "got": ["0:1", "0", "foo", "0:x", "9" * 30],
    "banned": ["foo"],
    "blob:weights-1": ["head", "0", "foo"],
}
STRINGS = ("trainer", "figures")
LISTS = ("rows", "in:0")
TYPES: Mapping[str, Callable[[redis.Redis, str], object]] = {
    "string": lambda client, key: client.set(key, b"x"),
    "hash": lambda client, key: client.hset(key, "x", "y"),
    "list": lambda client, key: client.rpush(key, b"x"),
    "set": lambda client, key: client.sadd(key, b"x"),
    "sorted set": lambda client, key: client.zadd(key, {"x": 1.0}),
    "stream": lambda client, key: client.xadd(key, {"x": "y"}),
}
KEYS = ["rlexp:tasks", *(PREFIX + name for name in (*FIELDS, *STRINGS, *LISTS))]


class Scene:
    """Two tasks that are trained, and the actor of one."""

    def __init__(self, board: Board, client: redis.Redis) -> None:
        self.board, self.client = board, client
        led(board, OTHER)
        self.lead = led(board, TASK)
        board.put_blob(self.lead, "weights-1", b"weights")
        board.put_rows(self.lead, ["{}"])
        self.seat = claimed(board)
        board.beat(self.seat, [b"fragment"])
        board.ban(self.lead, "somebody")
        self.news = News(1, {(self.seat.index, self.seat.epoch): 0}, {"num_updates": 3})
        published(board, self.lead, self.news)

    def read_all(self) -> None:
        """Call each reader of each role; nothing but what they are to raise may come of it."""
        board, lead = self.board, self.lead
        listed = [task.id for task in board.tasks()]
        if self.client.type("rlexp:tasks") == b"set" and self.client.sismember("rlexp:tasks", OTHER.id):
            assert OTHER.id in listed
        with suppress(UnreadableError):
            described = board.describe(TASK.id)
            assert described is None or described.id == TASK.id
        assert board.describe(OTHER.id) == OTHER
        for start in (0, 1, 10**6):
            board.rows(TASK.id, start)
        board.received(TASK.id)
        board.get_blob(TASK.id, "weights-1")
        with suppress(BannedError):
            other = board.claim(TASK.id, "other", 0.001)
            if other is not None:
                board.release(other)
        board.beat(self.seat, [b"more"])
        board.put_rows(lead, ["{}"])
        board.ban(lead, "another")
        board.queue(TASK.id).receive(4, 0.0)

    def mend(self) -> None:
        """Do what a trainer does with each beat; check that all is as it was."""
        board = self.board
        for _ in range(3):
            if published(board, self.lead, self.news).status is not None:
                break
            board.announce(TASK, {self.seat.index: self.seat.epoch})
            assert board.lead(TASK.id, "trainer", LEASE_S, self.lead.epoch) == self.lead
        listed = {task.id: task for task in board.tasks()}
        assert listed[TASK.id].trainer == "trainer"
        assert (listed[TASK.id].num_seats, listed[TASK.id].name) == (TASK.num_seats, TASK.name)
        assert board.describe(TASK.id) == TASK
        assert board.put_blob(self.lead, "weights-1", b"weights")
        assert board.get_blob(TASK.id, "weights-1") == b"weights"
        assert board.put_rows(self.lead, ["{}"])
        assert board.rows(TASK.id, 0)
        if not isinstance(board.beat(self.seat), Beat):  # an epoch that could be: another has it, others are free
            self.seat = claimed(board)
        assert kept(board, self.seat, [b"fragment"]).status is not None
        assert b"fragment" in board.queue(TASK.id).receive(100, 1.0)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    redis_server.command("FLUSHALL")
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def scene(redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(redis_board, "_LISTED_S", -1.0)
    board = open_board(parse_address(redis_server.url))
    yield Scene(board, client)
    board.close()


@pytest.mark.parametrize("kind", TYPES)
def test_key_of_any_other_type_counts_as_absent_and_is_mended(scene: Scene, client: redis.Redis, kind: str) -> None:
    for key in KEYS:
        client.delete(key)
        TYPES[kind](client, key)
        scene.read_all()
        client.delete(key)
        TYPES[kind](client, key)
        scene.mend()


@pytest.mark.parametrize("key", FIELDS)
def test_any_value_of_any_field_counts_as_absent_and_is_mended(scene: Scene, client: redis.Redis, key: str) -> None:
    for field in FIELDS[key]:
        for value in VALUES:
            client.hset(PREFIX + key, field, value)
            scene.read_all()
            client.hset(PREFIX + key, field, value)
            scene.mend()


@pytest.mark.parametrize("key", [*STRINGS, *LISTS])
def test_any_value_of_a_key_counts_as_absent_and_is_mended(scene: Scene, client: redis.Redis, key: str) -> None:
    for value in VALUES:
        for _ in range(2):
            if key in STRINGS:
                client.set(PREFIX + key, value)
            else:
                client.lpush(PREFIX + key, value)
                client.rpush(PREFIX + key, value)
            scene.read_all()
        scene.mend()


def test_task_stays_listed_and_joinable_under_random_garbage(scene: Scene, client: redis.Redis) -> None:
    rng = random.Random(11)
    for _ in range(300):
        name = rng.choice(list(FIELDS))
        key = PREFIX + name
        if rng.random() < 0.3:
            key = rng.choice(KEYS)
            client.delete(key)
            TYPES[rng.choice(list(TYPES))](client, key)
        elif client.type(key) in (b"hash", b"none"):
            client.hset(
                key,
                rng.choice([*map(str.encode, FIELDS[name]), rng.randbytes(6)]),
                rng.choice([*VALUES, rng.randbytes(20)]),
            )
        scene.read_all()
    scene.mend()


def test_each_key_is_named_once_and_each_value_counted(scene: Scene, client: redis.Redis) -> None:
    for number in range(5):
        client.hset(f"{PREFIX}seats", f"foo{number}\x1b[31m", "bar")
        client.hset(f"{PREFIX}task", "announced", "-1e400")
        scene.board.publish(scene.lead, scene.news)
    assert scene.board.unreadable.count == 10
    events = scene.board.unreadable.drain_events()
    assert len(events) == 2
    assert any("key seats of task t1" in event and "foo0" in event for event in events)
    assert "\x1b" not in "".join(events)
    assert scene.board.unreadable.drain_events() == []


def test_task_without_a_trainer_is_left_out_and_said_so(scene: Scene, client: redis.Redis) -> None:
    scene.board.give_up(scene.lead)
    client.hset(f"{PREFIX}task", "status", "DANCING")
    assert [task.id for task in scene.board.tasks()] == [OTHER.id]
    assert any("task t1" in event for event in scene.board.unreadable.drain_events())
    client.hset(f"{PREFIX}task", "description", '{"a": 1e400}')
    with pytest.raises(UnreadableError, match="task t1 that cannot be read: its key task description"):
        scene.board.describe(TASK.id)


def test_status_of_a_led_task_that_was_overwritten_is_running_again(scene: Scene, client: redis.Redis) -> None:
    client.hset(f"{PREFIX}task", mapping={"status": "QUEUED", "seats": "9999", "description": "{}", "weights": "77"})
    assert published(scene.board, scene.lead, scene.news).status is TaskStatus.RUNNING
    assert scene.board.describe(TASK.id) == TASK
    assert [task.weights_version for task in scene.board.tasks() if task.id == TASK.id] == [1]


def test_task_of_which_a_client_deleted_its_key_is_not_taken_off_the_list(scene: Scene, client: redis.Redis) -> None:
    client.delete(f"{PREFIX}task")
    client.sadd("rlexp:tasks", "never-there", "a:b", "x" * 99, b"\xff no id")
    assert scene.board.describe("never-there") is None
    scene.board.announce(OTHER)
    assert [task.id for task in scene.board.tasks()] == [OTHER.id, TASK.id]
    assert client.smembers("rlexp:tasks") == {b"t1", b"t2"}


def test_holder_of_a_higher_epoch_than_any_that_is_given_loses_the_seat_to_nobody(
    scene: Scene, client: redis.Redis
) -> None:
    """What a stranger writes there may free a seat, but whoever takes it then has an epoch that counts as newer."""
    now_ms = int(client.time()[0]) * 1000
    client.hset(f"{PREFIX}seats", scene.seat.index, f"{now_ms} {scene.seat.epoch + 10**6} evil")
    seen = published(scene.board, scene.lead, scene.news).seats[scene.seat.index].epoch
    again = claimed(scene.board)
    assert (again.index, again.epoch > seen) == (scene.seat.index, True)
    assert kept(scene.board, again)
