"""Drills on those who mean harm to a board's task, on other versions, and on what must stay secret.

Who has a board's password and a join token, and means harm to a task: forges messages and weights.
"""

from __future__ import annotations

import pickle
import subprocess
from dataclasses import replace
from pathlib import Path

import lz4.block
import numpy as np
import redis

from rlexp.board.messages import envelope
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import BlobHead, Task
from rlexp.board.messages.credentials import ActorKeys, TrainerKeys, parse_token, password_keys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import Newer, seal_fragment, seal_weights
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Seat
from rlexp.board.task import SeatSpecs, read_description
from rlexp.config.keys.user_code import UserModules
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import SampleBatch
from tests.drills.board_scene import BoardScene, board_scene, check_exact, finish, grown, leave
from tests.drills.scene import Command, Scene, check, drill, own_bytes
from tests.drills.workers import TRIAL
from tests.lab.brokers import LOGIN, Mosquitto, running_queue

MAX_BYTES = 4 << 20
BOMB_BYTES = 1 << 30


class Touch:
    """What runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return subprocess.call, (["touch", str(self._path)],)


class Eve:
    """Has the board's password, and a token of her own."""

    def __init__(self, board: BoardScene, token: str) -> None:
        self.server = redis.Redis.from_url(board.server.url)
        self.board = open_board(parse_address(board.server.url))
        self.task = board.task()
        self.keys = parse_token(token).keys(self.task)
        found = self.board.describe(self.task)
        assert found is not None
        self._specs = SeatSpecs(read_description(found), UserModules())
        seat = self.board.claim(self.task, "eve/host-1", 600.0)
        assert seat is not None
        self.seat: Seat = seat
        worker = RolloutWorker(self._specs.spec(seat))
        weights = {name: np.zeros(shape, np.float32) for name, shape in self._specs.weights_shapes.items()}
        worker.set_weights(0, weights)
        rows, self._info = worker.sample(0)
        worker.stop()
        assert isinstance(rows, SampleBatch)
        self.rows = rows
        self.weights = weights

    def sealed(self, number: int, rows: SampleBatch, keys: ActorKeys, **changes: str) -> bytes:
        """Return a fragment as it would be sent with ``keys``."""
        header = replace(Header(self.task, self.seat.index, self.seat.epoch, number, actor=keys.actor), **changes)  # type: ignore[arg-type]
        info: SampleInfo = self._info
        (message,) = seal_fragment(header, rows, info, keys.key, MAX_BYTES)
        return message

    def push(self, *messages: bytes) -> None:
        self.server.rpush(f"rlexp:{{{self.task}}}:in:0", *messages)

    def bomb(self) -> bytes:
        """Return a message, signed as it should be, that unpacks to more than it says."""
        said = envelope.read_message(self.sealed(0, self.rows, self.keys), self.keys.key, MAX_BYTES).header
        block = lz4.block.compress(bytes(BOMB_BYTES), store_size=False)[: 2 << 20]
        return envelope._sign(said, block, self.keys.key)

    def forge_weights(self) -> None:
        """Put weights there that no trainer has signed, as the newest."""
        newer = Newer(10**9, self.weights, None, 10**9)
        unsigned = TrainerKeys(self.keys.published_key, self.keys.published_key)
        blob = seal_weights(self.task, 2**50, newer, unsigned) + bytes(64)
        key = f"rlexp:{{{self.task}}}:blob:weights-{newer.version}"
        self.server.hset(key, "head", BlobHead.of(blob).to_text())
        self.server.hset(key, "0", blob)
        self.server.hset(f"rlexp:{{{self.task}}}:task", "weights", newer.version)


PASSWORD = "geheim-4711"
STRIKES, AFTER_BAN = 3, 3
"""Invalid fragments until the ban, and fragments that are sent after it."""
MOST_GROWTH_BYTES = 300 << 20


def key_folder(scene: Scene) -> Path:
    """Return the folder of a master key and of tokens of alice and eve."""
    folder = scene.folder / "keys"
    made = scene.run("board", "keys", "--out", folder, "--actor", "alice", "--actor", "eve")
    made.end_with(0)
    return folder


@drill(120, "board-evil")
def evil(scene: Scene) -> str:
    """Pickle, a bomb, another task, a wrong key, no token, NaN and forged weights, by one with password and token."""
    keys, sentinel = key_folder(scene), scene.folder / "sentinel"
    with board_scene(scene, PASSWORD) as board:
        run = board.run("--keys", f"@{keys / 'master.key'}")
        alice = board.join("--token", f"@{keys / 'alice.token'}")
        row = grown(run, run.wait_until_it_learns())
        eve = Eve(board, (keys / "eve.token").read_text().strip())
        before = own_bytes(scene.one(TRIAL))
        stranger = password_keys(PASSWORD, eve.task)
        fragment = eve.sealed(1, eve.rows, eve.keys)
        wrong = [
            pickle.dumps(Touch(sentinel)),
            bytes(8 << 20),
            eve.sealed(1, eve.rows, eve.keys, task_id="another"),
            eve.sealed(1, eve.rows, replace(eve.keys, actor="alice")),
            eve.sealed(1, eve.rows, stranger),
            fragment[:3] + b"2" + fragment[4:],
        ]
        eve.push(*wrong)
        nan = eve.rows.with_columns(obs=np.full_like(eve.rows["obs"], np.nan))
        eve.push(eve.bomb(), *(eve.sealed(number, nan, eve.keys) for number in range(1, STRIKES)))
        run.wait_for_note("actor eve is banned")
        eve.push(*(eve.sealed(number, eve.rows, eve.keys) for number in range(STRIKES, STRIKES + AFTER_BAN)))
        refused = forged_weights_refused(run, alice, eve)
        row = grown(run, row, steps=800)
        info, growth = row["info"]["board"], own_bytes(scene.one(TRIAL)) - before
        told = check_exact(finish(board, run, alice))
    refused_count = len(wrong) + STRIKES
    check(info["num_refused"] == refused_count and info["banned"] == ["eve"], f"{info}")
    check(info["num_fenced"] == AFTER_BAN, f"{info}")  # a ban gives the seat another epoch
    check(not sentinel.exists(), "the pickle was unpickled")
    check(growth < MOST_GROWTH_BYTES, f"the trainer grew by {growth / 1e6:.0f} MB")
    told = f"{refused}; memory {growth / 1e6:+.0f} MB; of alice: {told}"
    return f"{refused_count} of {refused_count} refused, eve banned, {AFTER_BAN} more left out; {told}"


def forged_weights_refused(run: Command, alice: Command, eve: Eve) -> str:
    """Put forged weights there until an actor has seen them; return what it says."""
    for _ in range(100):
        eve.forge_weights()
        run.wait_for_result()
        alice.wait_for("figures or a note", lambda event: True)
        if refused := [note for note in alice.notes if "weights on the board are refused" in note]:
            return refused[0]
    raise AssertionError("the actor did not refuse them")


@drill(121, "board-versions")
def versions(scene: Scene) -> str:
    """An actor has another version of the env; then a task is of another protocol than the actor."""
    with board_scene(scene) as board:
        board.env = "tests.drills.envs:Versioned"
        run, same = board.run(), board.join()
        run.wait_until_it_learns()
        other = board.join("--once", variables={"DRILL_VERSION": "2"})
        other.end_with(1)
        check("plays in another way here" in other.stderr, other.stderr)
        opened = open_board(parse_address(board.server.url))
        opened.announce(Task("future", "future", 1, {"protocol": 99}))
        check(opened.lead("future", "trainer", 600.0), "the task cannot be led")
        later = board.join("--task", "future")
        later.end_with(2)
        check("99" in later.stderr, later.stderr)
        leave(same)
        run.stop()
        opened.close()
    return f"{first_line(other)}; {first_line(later)}"


def first_line(command: Command) -> str:
    return command.stderr.splitlines()[0]


@drill(122, "board-secrets")
def secrets_kept(scene: Scene) -> str:
    """Passwords, keys and tokens of board and queue are in no file, output, command line, nor on the board."""
    keys, folder = key_folder(scene), scene.folder / "redis"
    folder.mkdir()
    with board_scene(scene, PASSWORD, folder) as board, running_queue(Mosquitto()) as queue:
        queue_password = LOGIN[1]
        board.url = f"redis://127.0.0.1:{board.server.port}"
        words = ("--queue", queue.url.replace(f":{queue_password}", ""))
        given = {"RLEXP_BOARD_PASSWORD": PASSWORD, "RLEXP_QUEUE_PASSWORD": queue_password}
        run = board.run(*words, "--keys", f"@{keys / 'master.key'}", variables=given)
        alice = board.join(*words, "--token", f"@{keys / 'alice.token'}", variables=given)
        grown(run, run.wait_until_it_learns())
        lines = "\n".join(" ".join(process.cmdline()) for process in scene.processes())
        check_exact(finish(board, run, alice))
    secrets = [PASSWORD, queue_password, *((keys / name).read_text().strip() for name in ("master.key", "alice.token"))]
    shown = {"output": "".join([*run.output, run.stderr, *alice.output, alice.stderr, str(run.events)]), "ps": lines}
    texts = {name: text.encode() for name, text in shown.items()}
    files = [path for path in scene.folder.rglob("*") if path.is_file() and keys not in path.parents]
    texts |= {str(path): path.read_bytes() for path in files}
    found = [name for name, text in texts.items() for secret in secrets if secret.encode() in text]
    check(not found, f"secrets in {found}")
    return f"4 secrets in none of {len(files)} files, the board's own among them, nor in output or command lines"
