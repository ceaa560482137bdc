"""Drills on the trainer of a board's task: killed and followed, killed and resumed, and standing still."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.drills.board_scene import (
    LEASE_S,
    STEPS,
    account_of,
    board_scene,
    check_exact,
    finish,
    grown,
    interrupt,
    learns,
    leave,
)
from tests.drills.scene import Command, Scene, check, drill, rows_of
from tests.drills.workers import TRIAL

SLOW_S = 20.0


@drill(104, "board-trainer-killed")
def trainer_killed(scene: Scene) -> str:
    """A submitted task's trainer is killed with -9; another one that waits follows, and the actor keeps its seat."""
    with board_scene(scene) as board:
        actor, first, client = board.join(), board.train("first"), board.submit()
        learns(client, steps=600)
        second = board.train("second")
        second.wait_for_note("no submitted task waits")
        kill_all(scene, first, actor, client, second)
        killed_s = time.monotonic()
        second.wait_for_note("trains")
        followed_s = time.monotonic() - killed_s
        task = board.task()
        before = rows_of(scene.folder / "first/tasks" / task)[-1]
        learns(client, before["info"]["num_updates"] + 10, before["timesteps_total"] + 200)
        learned_s = time.monotonic() - killed_s
        sent = leave(actor)
        cancelled = scene.run("cancel", board.url, task)
        codes = [command.end() for command in (cancelled, second, client)]
        check(codes == [0, 0, 1], f"cancel, the trainer and the client end with {codes}: {client.stderr[-300:]}")
        told = compare_followed(scene.folder / "second/tasks" / task, sent)
        check(followed_s < LEASE_S + 5, f"followed after {followed_s:.1f} s")
        return f"followed {followed_s:.1f} s after the kill, learned on after {learned_s:.1f} s; {told}"


@drill(105, "board-trainer-resumed")
def trainer_resumed(scene: Scene) -> str:
    """A run on a board is killed with -9, all of it; ``rlexp resume`` goes on with the same task and its actors."""
    with board_scene(scene) as board:
        # So that much has come since the checkpoint on the board.
        run, actor = board.run(recovery_period_s=60), board.join()
        learns(run, steps=1200)
        kill_all(scene, run, actor)
        before = rows_of(scene.out / "drill")[-1]
        resumed = scene.start("resume", scene.out / "drill", "--board", board.url, "--json")
        learns(resumed, before["info"]["num_updates"] + 10, before["timesteps_total"] + 200)
        sent = leave(actor)
        interrupt(resumed)
        return f"killed after {before['timesteps_total']} steps; {compare_followed(scene.out / 'drill', sent)}"


def compare_followed(run: Path, sent: int) -> str:
    """Check that the second of two trainers has counted all that was sent but what it tells as lost, no row twice."""
    account = account_of(run, sent, is_whole=False)
    last = rows_of(run)[-1]
    counted, lost = last["timesteps_total"], STEPS * last["info"]["board"]["num_lost"]
    check(counted + lost == sent, f"{sent} steps were sent, {counted} are counted, {lost} told as lost")
    told = f"{sent:,} steps sent, {counted:,} counted and {lost:,} told as lost"
    return f"{told}; the successor's {account.stored:,} rows none twice"


def kill_all(scene: Scene, run: Command, *spared: Command) -> None:
    """Kill a command with -9, and all processes of it."""
    kept = {command.process.pid for command in spared}
    run.process.kill()
    for process in scene.processes():
        if process.pid not in kept:
            process.kill()
    run.process.wait()


@drill(108, "board-slow-trainer")
def slow_trainer(scene: Scene) -> str:
    """The process that learns stands still for 20 seconds, longer than every lease: its actors wait."""
    with board_scene(scene) as board:
        run, actor = board.run(window=8), board.join()
        row = grown(run, learns(run))
        trial = scene.one(TRIAL)
        trial.send_signal(signal.SIGSTOP)
        time.sleep(SLOW_S)  # the pause is what is drilled
        trial.send_signal(signal.SIGCONT)
        row = grown(run, row, steps=600)
        account = finish(board, run, actor)
        waited = [event["wait_share"] for event in actor.events if event["event"] == "actor"]
        check(max(waited) > 0.2, f"the actor did not wait: {waited}")
        return f"{check_exact(account)}; the actor waited for up to {max(waited):.0%} of its time"
