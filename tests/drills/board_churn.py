"""Long drills: for ten minutes actors come and go at random, or either end of a board is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rlexp.agents.agent import STATE_GROUP
from rlexp.rollout.folds import IS_STEP
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.sample_batch import OBS
from rlexp.states import join_state
from tests.drills.board_scene import (
    APPO_EXPERIMENT,
    ENDS_BY_INTERRUPT,
    STEPS,
    Account,
    BoardScene,
    account_of,
    board_scene,
    leave,
)
from tests.drills.boards import kill_all
from tests.drills.endurance import follow
from tests.drills.runs import checkpoints_of, rows_of
from tests.drills.scene import Command, Scene, check, drill, own_bytes
from tests.lab.brokers import Mosquitto, RabbitMQ, running_queue

SEED = 12
CHURN_S, EVERY_S = 600.0, 6.0
NUM_ACTORS, LEASE_S = 4, 3
MOST_GROWTH = 1.1
"""Times the memory after two minutes, besides what replay and the results on the board have grown by."""
SAMPLED_AT_S = (120.0, 300.0, 600.0)
ROW_BYTES = 48
"""Of replay."""
RESULTS_BYTES = 4 << 20
"""Of the newest 1,000 rows of results, which a board keeps."""


@dataclass
class Churn:
    """The actors of one run, and what was done to them."""

    board: BoardScene
    run: Command
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    actors: list[Command] = field(default_factory=list)
    """Those that play; the first one is left alone until the end."""
    gone: list[Command] = field(default_factory=list)
    frozen: list[tuple[float, Command]] = field(default_factory=list)
    """By when they go on."""
    done: Counter[str] = field(default_factory=Counter)
    memory: dict[float, dict[str, int]] = field(default_factory=dict)

    def disturb(self) -> None:
        """Let one actor be killed, frozen or stopped by Ctrl-C, and let there be as many as before."""
        kind = self.rng.choice(("killed", "interrupted", "frozen"))
        actor = self.rng.choice(self.actors[1:])
        while len(self.actors) <= NUM_ACTORS:
            self.actors.append(self.board.join())
        actor.wait_for("first word", lambda event: True)  # before, Python itself ends by a signal
        self.done[kind] += 1
        if kind == "frozen":
            actor.process.send_signal(signal.SIGSTOP)
            self.actors.remove(actor)
            self.frozen.append((time.monotonic() + LEASE_S + self.rng.uniform(1, 5), actor))
            return
        actor.process.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGINT)
        self.actors.remove(actor)
        self.gone.append(actor)

    def thaw(self, until_s: float = 0.0) -> None:
        """Let those go on whose time has come, and then leave."""
        for due in [each for each in self.frozen if each[0] <= max(until_s, time.monotonic())]:
            self.frozen.remove(due)
            due[1].process.send_signal(signal.SIGCONT)
            self.actors.append(due[1])

    def sample_memory(self, at_s: float) -> None:
        """Note what each end holds for itself alone."""
        pids = {actor.process.pid for actor in (*self.actors, *self.gone, *(each for _, each in self.frozen))}
        trainer = [process for process in self.board.scene.processes() if process.pid not in pids]
        self.memory[at_s] = {
            "trainer": sum(map(own_bytes, trainer)),
            "broker": own_bytes(psutil.Process(self.board.server.pid)),
            "actor": own_bytes(psutil.Process(self.actors[0].process.pid)),
        }


@drill(119, "board-churn", is_long=True)
def churn(scene: Scene) -> str:
    """For ten minutes actors come and go at random: killed, frozen for longer than their lease, or by Ctrl-C."""
    with board_scene(scene) as board:
        board.step_s = 0.025
        seats = 3 * NUM_ACTORS
        run = board.run(actors=seats, lease_s=LEASE_S)
        churn = Churn(board, run, actors=[board.join() for _ in range(NUM_ACTORS)])
        run.wait_until_it_learns()
        started_s, rows = time.monotonic(), {}
        for count in range(1, int(CHURN_S / EVERY_S) + 1):
            follow(run, started_s + count * EVERY_S)
            churn.thaw()
            churn.disturb()
            if count * EVERY_S in SAMPLED_AT_S:
                churn.sample_memory(count * EVERY_S)
                rows[count * EVERY_S] = run.wait_until_it_learns()["timesteps_total"]
        churn.thaw(float("inf"))
        leave(*churn.actors)
        for actor in churn.gone:
            check(
                actor.end() in (*ENDS_BY_INTERRUPT, -signal.SIGKILL), f"an actor ended with {actor.process.returncode}"
            )
        run.stop()
        return judge(churn, rows)


def judge(churn: Churn, rows: dict[float, int]) -> str:
    """Check memory and counts of what has ended; return them as text."""
    run = churn.board.scene.out / "drill"
    account, last = account_of(run, 0), rows_of(run)[-1]
    info = last["info"]["board"]
    figures = f"{last['timesteps_total']} steps, {info['num_rows']} rows counted, {account.stored} stored"
    check(info["num_rows"] <= account.stored and last["timesteps_total"] <= account.stored, figures)
    seats = compare_seats(churn, account)
    told = (
        f"{dict(churn.done)}; {account.stored:,} rows of {len(account.players)} players stored, none twice, none"
        f" missing between; {seats}; {info['num_repeated']} fragments came again, {info['num_fenced']} of former"
        f" holders, {info['num_lost_leases']} leases lost; memory {memory_told(churn.memory)}"
    )
    first, end = churn.memory[SAMPLED_AT_S[0]], churn.memory[SAMPLED_AT_S[-1]]
    more = {"trainer": ROW_BYTES * (rows[SAMPLED_AT_S[-1]] - rows[SAMPLED_AT_S[0]]), "broker": RESULTS_BYTES}
    for name, size in end.items():
        check(size <= MOST_GROWTH * first[name] + more.get(name, 0), f"{name} grows: {told}")
    return told


def compare_seats(churn: Churn, account: Account) -> str:
    """Check for each seat that was left by Ctrl-C or lost that its rows are those that its actor says it sent."""
    counts, exact, lost = Counter(account.players.values()), 0, 0
    left = [event for actor in (*churn.gone, *churn.actors) for event in actor.events_of("left")]
    for seat in left:
        most = seat["num_env_steps"] // 2
        if not seat["num_dropped"]:
            check(counts[most] >= 2 or not most, f"no two players have {most} rows, those of a seat that was left")
            counts[most] -= 2
            exact += 1
            continue
        lost += 1
        least = most - STEPS // 2 * seat["num_dropped"]
        within = [count for count in counts.elements() if least <= count <= most]
        check(
            len(within) >= 2 or not least, f"no two players have {least} to {most} rows, those of a seat that was lost"
        )
    return f"{exact} seats given back with exactly what was sent, {lost} lost ones within what was thrown away"


def memory_told(memory: dict[float, dict[str, int]]) -> str:
    """Return the memory of each end over time."""
    return (
        ", ".join(
            f"{name} {' / '.join(f'{each[name] / 1e6:.0f}' for each in memory.values())} MB"
            for name in next(iter(memory.values()))
        )
        + f" after {' / '.join(f'{at_s / 60:g}' for at_s in memory)} min"
    )


MINUTES = float(os.environ.get("DRILL_MINUTES", "10"))
"""Of the drill whose ends are killed."""
PAUSE_S = (3.0, 12.0)
"""Between two kills."""
TRAINERS_SHARE = 0.3


@dataclass
class Ends:
    """A submitted task of APPO, its actors, the trainer that has it, and the one that waits."""

    board: BoardScene
    client: Command
    actors: list[Command]
    trainers: list[Command]
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    done: Counter[str] = field(default_factory=Counter)

    def kill_an_actor(self) -> None:
        """Kill the first or the second actor with -9, and let another one come."""
        actor = self.actors.pop(self.rng.randrange(2))
        actor.process.kill()
        self.actors.append(self.board.join())
        self.done["actors"] += 1

    def kill_the_trainer(self) -> None:
        """Kill all processes of the trainer with -9; the other one follows, and has learned before this returns."""
        killed, follower = self.trainers[-2:]
        kill_all(self.board.scene, killed, self.client, follower, *self.actors)
        self.done["trainers"] += 1
        follower.wait_for_note("trains")
        folder = self.board.scene.folder / f"trainer-{len(self.trainers) - 1}/tasks" / self.board.task()
        self.trainers.append(self.board.train(f"trainer-{len(self.trainers)}"))
        self.client.wait_for_result(
            lambda row: any("\n" in path.read_text(encoding="utf-8") for path in folder.glob("*/result.json"))
        )


@drill(127, "board-ends-killed", is_long=True)
def ends_killed(scene: Scene) -> str:
    """For ten minutes (DRILL_MINUTES) actors and trainers of APPO are killed at random: no step is learned twice."""
    return kill_ends(scene)


@drill(128, "board-ends-killed-rabbitmq", is_long=True)
def ends_killed_rabbitmq(scene: Scene) -> str:
    """The same, with fragments over RabbitMQ."""
    with running_queue(RabbitMQ()) as server:
        return kill_ends(scene, ("--queue", server.url))


@drill(129, "board-ends-killed-mqtt", is_long=True)
def ends_killed_mqtt(scene: Scene) -> str:
    """The same, with fragments over MQTT."""
    with running_queue(Mosquitto()) as server:
        return kill_ends(scene, ("--queue", server.url))


def kill_ends(scene: Scene, queue: Sequence[str] = ()) -> str:
    """Kill actors and trainers of a board, whose fragments go over a queue; judge what was learned."""
    with board_scene(scene) as board:
        board.queue = queue
        board.step_s, board.experiment = 0.025, APPO_EXPERIMENT
        board.keys |= {"recovery_period_s": 2}
        actors, client = [board.join(), board.join()], board.submit()
        first = board.train("trainer-0")
        client.wait_until_it_learns()
        ends = Ends(board, client, actors, [first, board.train("trainer-1")])
        ends.trainers[-1].wait_for_note("no submitted task waits")
        ends_s = time.monotonic() + 60 * MINUTES
        while time.monotonic() < ends_s:
            follow(client, time.monotonic() + ends.rng.uniform(*PAUSE_S))
            if ends.rng.random() < TRAINERS_SHARE:
                ends.kill_the_trainer()
            else:
                ends.kill_an_actor()
        row = client.wait_until_it_learns()
        client.wait_until_it_learns(steps=row["timesteps_total"] + 200)
        task = board.task()
        leave(*ends.actors)
        scene.run("cancel", board.url, task).end()
        ends.trainers[-2].end()
        ends.trainers[-1].process.send_signal(signal.SIGINT)
        ends.trainers[-1].end()
        return judge_ends(
            ends, [scene.folder / f"trainer-{number}/tasks" / task for number in range(len(ends.trainers))]
        )


def judge_ends(ends: Ends, runs: list[Path]) -> str:
    """Check that the last trainer has learned no step twice, and that only steps are missing that were told as lost."""
    last = rows_of(runs[-2])[-1]
    checkpoint = read_checkpoint(checkpoints_of(runs[-2])[-1])
    state = join_state(checkpoint.copies(STATE_GROUP), checkpoint.state)
    optimizer = state["optimizer"]["AsyncSamplesOptimizer"]
    steps: dict[int, list[int]] = defaultdict(list)
    for part in optimizer["old_fragments"]["kept"]:
        for player, _, step in part["columns"][OBS][part["columns"][IS_STEP]].astype(int).tolist():
            steps[player].append(step)
    taken = sum(map(len, steps.values()))
    twice = taken - sum(len(set(own)) for own in steps.values())
    missing = sum(max(own) + 1 - len(set(own)) for own in steps.values())
    lost = STEPS * sum(rows_of(run)[-1]["info"]["board"]["num_lost"] for run in runs if run.exists())
    told = (
        f"killed {dict(ends.done)}; {taken:,} steps of {len(steps)} players taken, {twice} twice, {missing:,} missing"
        f" before later ones, {lost:,} told as lost; {last['info']['num_steps_trained']:,} trained,"
        f" {last['info']['num_updates']:,} updates, {last['info']['board']['num_refused']} refused"
    )
    check(not twice and missing <= lost and not last["info"]["board"]["num_refused"], told)
    check(last["info"]["num_steps_trained"] <= last["timesteps_total"] == taken, told)
    return told
