"""A drill: those who may use a board write anything into every key that their role may write, while others train."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from rlexp.board.servers.redis_scripts import ACTOR, CLIENT, FIRST_WITH_READ_ONLY_KEYS, ROLES, TRAINER
from tests.drills.board_malice import key_folder
from tests.drills.board_scene import ENDS_BY_INTERRUPT
from tests.drills.envs import Matching
from tests.drills.scene import DEADLINE_S, Command, DrillError, Scene, check, drill
from tests.lab.brokers import RedisServer, running_redis

SEED = 5
SHORT_S, LONG_S = 12.0, 120.0
LOOK_S = 2.0
"""Between two lists of the tasks."""
BEST, ENOUGH = Matching.STEPS, 18.5
"""Mean returns; half of BEST is what chance has."""
BAD_ROLES = (ACTOR, CLIENT)
"""A trainer may do everything with a board's keys."""
EXPERIMENT = """
drill:
  run: APEX
  env: tests.drills.envs:Matching
  stop: {training_iteration: 1000000}
  config:
    seed: 0
    num_workers: 0
    num_envs_per_worker: 2
    sample_batch_size: 10
    n_step: 1
    gamma: 0.5
    lr: 0.005
    learning_starts: 200
    train_batch_size: 64
    training_intensity: 16
    buffer_size: 20000
    target_network_update_freq: 400
    timesteps_per_iteration: 1
    min_iter_time_s: 0.5
    hiddens: [16]
    model: {fcnet_hiddens: [16]}
    optimizer: {num_replay_buffer_shards: 1}
    board: {actors: 4, min_actors: 1, beat_s: 0.5, lease_s: 3, weights_period_s: 0.5, recovery_period_s: 5}
"""


class Tenants:
    """A server with the roles' rules, the honest ones on it, and the bad ones."""

    def __init__(self, scene: Scene, server: RedisServer) -> None:
        check(server.version >= FIRST_WITH_READ_ONLY_KEYS, "Redis before 7.0 knows no keys that may only be read")
        for role in ROLES:
            server.command("ACL", "SETUSER", role.name, *role.rules(f"of-{role.name}").split())
        self.scene, self.server, self.keys = scene, server, key_folder(scene)
        self.num_listed = 0
        """Lists of the tasks that were looked at; all of them had the honest one."""

    def url(self, role: str) -> str:
        return f"redis://{role}:of-{role}@127.0.0.1:{self.server.port}"

    def run(self) -> Command:
        """Start the honest trainer."""
        words = ("--board", self.url(TRAINER.name), "--keys", f"@{self.keys / 'master.key'}")
        return self.scene.start_run(EXPERIMENT, *words)

    def join(self) -> Command:
        """Start an honest actor."""
        words = ("--token", f"@{self.keys / 'alice.token'}", "--allow-env", "tests.drills.envs:Matching", "--json")
        return self.scene.start("join", self.url(ACTOR.name), *words)

    def bad(self, role: str, seconds: float) -> subprocess.Popen[str]:
        """Start one who has a role's password, and means harm to all keys that are there."""
        keys = [*self.server.members("KEYS", "rlexp:*"), "rlexp:{new}:task", "rlexp:{new}:seats", "rlexp:{new}:in:0"]
        words = (sys.executable, "-m", "tests.drills.bad_tenant", self.url(role), role, SEED, seconds, *keys)
        environment = self.scene.environment()
        return subprocess.Popen(
            list(map(str, words)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def look(self, task: str, run: Command) -> None:
        """List the tasks as a client does; check that the honest one is among them."""
        listed = self.scene.start("tasks", self.url(CLIENT.name), "--json")
        listed.end_with(0)
        if run.process.poll() is not None:
            raise DrillError(f"the run ended with {run.process.returncode}: {ended_by(run)}")
        tasks = {each["id"]: each for each in json.loads(listed.output[0])["tasks"]}
        check(tasks.get(task, {}).get("trainer"), f"{task} is not listed with its trainer: {tasks}")
        self.num_listed += 1


@drill(123, "board-bad-tenants")
def bad_tenants(scene: Scene) -> str:
    """An actor and a client write random bytes, types and numbers everywhere, while others train."""
    return invaded(scene, SHORT_S)


@drill(124, "board-bad-tenants-long", is_long=True)
def bad_tenants_long(scene: Scene) -> str:
    """The same for two minutes."""
    return invaded(scene, LONG_S)


def invaded(scene: Scene, seconds: float) -> str:
    """Let bad ones of each role write while a trainer and two actors train; check that these learn nevertheless."""
    with ExitStack() as stack:
        tenants = Tenants(scene, stack.enter_context(running_redis()))
        run, actors = tenants.run(), [tenants.join(), tenants.join()]
        first = run.wait_for_result(lambda row: row["info"]["num_updates"] >= 10)
        task = tenants.server.members("SMEMBERS", "rlexp:tasks")[0]
        bad = {role.name: tenants.bad(role.name, seconds) for role in BAD_ROLES}
        for process in bad.values():
            stack.callback(process.kill)
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            tenants.look(task, run)
            run.wait_for_result()
            time.sleep(LOOK_S)
        written = {role: finished(process) for role, process in bad.items()}
        row = run.wait_for_result(
            lambda row: row["timesteps_total"] > first["timesteps_total"] and (row["episode_reward_mean"] or 0) > ENOUGH
        )
        tenants.look(task, run)
        interrupt_all(run, actors)
    return told(written, row, first, tenants.num_listed, run)


def interrupt_all(run: Command, actors: list[Command]) -> None:
    """Let the actors leave, which are still there, and then the trainer."""
    for actor in actors:
        check(actor.process.poll() is None, f"an actor ended with {actor.process.returncode}: {actor.stderr[-300:]}")
        actor.process.send_signal(signal.SIGINT)
    for actor in actors:
        check(actor.end() in ENDS_BY_INTERRUPT, f"an actor ends with {actor.process.returncode}: {actor.stderr[-300:]}")
    run.stop()


def ended_by(run: Command) -> str:
    """Return how the trial of a run has ended."""
    run.end()
    events = [json.loads(line) for line in run.output if line.startswith("{")]
    return str(next((each["message"] for each in [*run.events, *events] if each["event"] == "trial_end"), run.stderr))


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a bad one has written."""
    output, errors = process.communicate(timeout=DEADLINE_S)
    check(process.returncode == 0, errors[-300:])
    found: dict[str, Any] = json.loads(output)
    return found


def told(written: dict[str, Any], row: dict[str, Any], first: dict[str, Any], num_listed: int, run: Command) -> str:
    """Check that something was written, and was noticed; return it as text."""
    info = row["info"]["board"]
    counts = ", ".join(
        f"{role} {sum(each['done'].values()):,} ({'; '.join(sorted(each['done']))}), {each['refused']:,} without effect"
        for role, each in written.items()
    )
    check(all(sum(each["done"].values()) > 100 for each in written.values()), f"too little was written: {counts}")
    check(info["num_unreadable"] > 0, f"nothing of it was noticed: {info}")
    notes = [event["text"] for event in run.events if "cannot be read" in event.get("text", "")]
    check(notes and len(notes) == len(set(notes)), f"named {len(notes)} times: {notes[:5]}")
    return (
        f"written: {counts}; mean return {row['episode_reward_mean']:.1f} of {BEST}, {row['timesteps_total']:,} steps,"
        f" {first['timesteps_total']:,} before; listed {num_listed} of {num_listed} times; {info['num_unreadable']:,}"
        f" values mended, {len(notes)} keys named, once each; {info['num_lost_leases']} leases lost"
    )
