"""Drills on the ends of a board and the server between them: killed, followed, frozen, restarted, slow, and many."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from benchmarks.board_actors import measure
from tests.drills.board_scene import LEASE_S, STEPS, account_of, board_scene, check_exact, finish, grown, leave
from tests.drills.runs import rows_of
from tests.drills.scene import Command, Scene, check, drill
from tests.drills.workers import TRIAL
from tests.lab.brokers import Mosquitto, RabbitMQ, running_queue, running_redis

AWAY_S = 8.0
"""How long a server is gone."""
FROZEN_S = 8.0
"""Longer than the lease of these drills' actors, and than a new actor needs to take their seat."""
SLOW_S = 20.0
KILLED = -signal.SIGKILL
ACTORS, FRAGMENTS_PER_S, WEIGHTS_KB, SECONDS = 100, 3.0, 270.0, 10.0
SLOWEST_BEAT_MS = 2000.0
"""Of ninety-nine in a hundred, on two cores that have all of it: actors' beats are due every 2 s."""


@drill(101, "board-restart")
def board_restart(scene: Scene) -> str:
    """Redis is killed for 8 seconds while all learn, and comes back without its data."""
    return restarted(scene, keeps_data=False)


@drill(102, "board-restart-kept")
def board_restart_kept(scene: Scene) -> str:
    """Redis is killed for 8 seconds while all learn, and comes back with what its append-only file has."""
    return restarted(scene, keeps_data=True)


def restarted(scene: Scene, keeps_data: bool) -> str:
    """Kill the server of a run and its actors, start it again, and check that all is stored once."""
    folder = scene.folder / "redis" if keeps_data else None
    if folder is not None:
        folder.mkdir()
    with board_scene(scene, folder=folder) as board:
        run, actors = board.run(min_actors=2), [board.join(), board.join()]
        row = grown(run, run.wait_until_it_learns())
        board.server.kill()
        time.sleep(AWAY_S)  # the time without it is what is drilled
        board.server.start()
        back_s = time.monotonic()
        row = run.wait_for_result(lambda after: after["timesteps_total"] > row["timesteps_total"] + 400)
        took_s = time.monotonic() - back_s
        row = grown(run, row)
        info = row["info"]["board"]
        check(info["num_lost_connections"] and not info["num_lost"], f"{info}")
        told = check_exact(finish(board, run, *actors))
        joined = {event["text"] for event in run.events if "has joined" in event.get("text", "")}
        check(len(joined) == 2, f"seats were taken again: {joined}")
        kept = f"seats kept, {info['num_lost_leases']} leases had ended; {info['num_repeated']} fragments came again"
        return f"400 steps more {took_s:.1f} s after its return; {kept}; {told}"


@drill(103, "board-queue-restart")
def queue_restart(scene: Scene) -> str:
    """Mosquitto, then RabbitMQ, beside Redis: killed for some seconds while all learn, without data."""
    told = []
    for kind in (Mosquitto, RabbitMQ):
        with board_scene(scene) as board, running_queue(kind()) as queue:
            words = ("--queue", queue.url)
            run, actor = board.run(*words, "--overwrite"), board.join(*words)
            row = grown(run, run.wait_until_it_learns())
            queue.kill()
            time.sleep(AWAY_S / 2)
            queue.start()
            row = grown(run, row, steps=600)
            repeated = row["info"]["board"]["num_repeated"]
            told.append(f"{kind.__name__}: {check_exact(finish(board, run, actor))}, {repeated} came again")
    return "; ".join(told)


@drill(106, "board-actor-killed")
def actor_killed(scene: Scene) -> str:
    """One of two actors is killed with -9; one that waited has its seat soon after the lease."""
    with board_scene(scene) as board:
        run, actors = board.run(min_actors=2), [board.join(), board.join()]
        grown(run, run.wait_until_it_learns())
        spare = board.join()
        spare.wait_for_note("no task has a free seat")
        killed_s = time.monotonic()
        actors[0].process.kill()
        spare.wait_for_note("took seat")
        took_s = time.monotonic() - killed_s
        run.wait_for_note("is lost: no beat")
        grown(run, run.wait_until_it_learns())
        account = finish(board, run, actors[1], spare)
        check(actors[0].end() == KILLED, "it was not killed")
        unknown = account.stored - account.sent
        check(len(account.players) == 6 and unknown >= 0, f"{account}")
        check(took_s < LEASE_S + 2, f"the seat was taken after {took_s:.1f} s")
        return (
            f"seat taken {took_s:.1f} s after the kill, with a lease of {LEASE_S} s; {account.stored} rows, none twice"
        )


@drill(107, "board-actor-frozen")
def actor_frozen(scene: Scene) -> str:
    """An actor is stopped by a signal for longer than its lease, and goes on when another one has its seat."""
    with board_scene(scene) as board:
        run, frozen = board.run(actors=1), board.join()
        grown(run, run.wait_until_it_learns())
        other = board.join()
        other.wait_for_note("no task has a free seat")
        frozen.process.send_signal(signal.SIGSTOP)
        other.wait_for_note("took seat")
        row = grown(run, run.wait_until_it_learns())
        frozen.process.send_signal(signal.SIGCONT)
        left = frozen.wait_for("end in its seat", lambda event: event["event"] == "left")
        check(left["why"] == "another actor has the seat", f"it left since {left['why']}")
        grown(run, row)
        account = finish(board, run, frozen, other)
        dropped = STEPS * left["num_dropped"]
        check(account.sent <= account.stored <= account.sent + dropped, f"{account}, {dropped} thrown away")
        return f"fenced; {left['num_dropped']} fragments thrown away; {account.stored:,} rows stored, none twice"


@drill(104, "board-trainer-killed")
def trainer_killed(scene: Scene) -> str:
    """A submitted task's trainer is killed with -9; another one that waits follows, and the actor keeps its seat."""
    with board_scene(scene) as board:
        actor, first, client = board.join(), board.train("first"), board.submit()
        client.wait_until_it_learns(steps=600)
        second = board.train("second")
        second.wait_for_note("no submitted task waits")
        kill_all(scene, first, actor, client, second)
        killed_s = time.monotonic()
        second.wait_for_note("trains")
        followed_s = time.monotonic() - killed_s
        task = board.task()
        before = rows_of(scene.folder / "first/tasks" / task)[-1]
        client.wait_until_it_learns(before["info"]["num_updates"] + 10, before["timesteps_total"] + 200)
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
        run.wait_until_it_learns(steps=1200)
        kill_all(scene, run, actor)
        before = rows_of(scene.out / "drill")[-1]
        resumed = scene.start("resume", scene.out / "drill", "--board", board.url, "--json")
        resumed.wait_until_it_learns(before["info"]["num_updates"] + 10, before["timesteps_total"] + 200)
        sent = leave(actor)
        resumed.stop()
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
        row = grown(run, run.wait_until_it_learns())
        trial = scene.one(TRIAL)
        trial.send_signal(signal.SIGSTOP)
        time.sleep(SLOW_S)  # the pause is what is drilled
        trial.send_signal(signal.SIGCONT)
        row = grown(run, row, steps=600)
        account = finish(board, run, actor)
        waited = [event["wait_share"] for event in actor.events_of("actor")]
        check(max(waited) > 0.2, f"the actor did not wait: {waited}")
        return f"{check_exact(account)}; the actor waited for up to {max(waited):.0%} of its time"


@drill(118, "board-hundred")
def hundred(scene: Scene) -> str:
    """A hundred actors without envs send to one trainer, which publishes weights of 270 kB meanwhile."""
    with running_redis() as server:
        started_s = time.monotonic()
        seen = measure(server.url, ACTORS, FRAGMENTS_PER_S, SECONDS, WEIGHTS_KB, 2)
    check(seen["lost"] == seen["doubled"] == 0, f"{seen['lost']} lost, {seen['doubled']} doubled")
    check(seen["beat_p99_ms"] < SLOWEST_BEAT_MS, f"p99 of a beat is {seen['beat_p99_ms']:.0f} ms")
    return (
        f"{seen['fragments_per_s']:,.0f} fragments/s, {seen['mb_per_s']:.1f} MB/s in, {seen['weights_mb_per_s']:.1f}"
        f" MB/s of weights out, beat p99 {seen['beat_p99_ms']:.0f} ms, Redis {seen['redis_cpu']:.0%} of a core; none"
        f" lost, none doubled; {time.monotonic() - started_s:.0f} s"
    )
