"""Drills on the ends of a board and the server between them: killed, frozen, restarted, slow."""

from __future__ import annotations

import signal
import time

from tests.drills.board_scene import LEASE_S, STEPS, board_scene, check_exact, finish, grown, learns
from tests.drills.scene import Scene, check, drill
from tests.lab.brokers import Mosquitto, RabbitMQ, running_queue

AWAY_S = 8.0
"""How long a server is gone."""
FROZEN_S = 8.0
"""Longer than the lease of these drills' actors, and than a new actor needs to take their seat."""
KILLED = -signal.SIGKILL


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
        row = grown(run, learns(run))
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
            row = grown(run, learns(run))
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
        grown(run, learns(run))
        spare = board.join()
        spare.wait_for_note("no task has a free seat")
        killed_s = time.monotonic()
        actors[0].process.kill()
        spare.wait_for_note("took seat")
        took_s = time.monotonic() - killed_s
        run.wait_for_note("is lost: no beat")
        grown(run, learns(run))
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
        grown(run, learns(run))
        other = board.join()
        other.wait_for_note("no task has a free seat")
        frozen.process.send_signal(signal.SIGSTOP)
        other.wait_for_note("took seat")
        row = grown(run, learns(run))
        frozen.process.send_signal(signal.SIGCONT)
        left = frozen.wait_for("end in its seat", lambda event: event["event"] == "left")
        check(left["why"] == "another actor has the seat", f"it left since {left['why']}")
        grown(run, row)
        account = finish(board, run, frozen, other)
        dropped = STEPS * left["num_dropped"]
        check(account.sent <= account.stored <= account.sent + dropped, f"{account}, {dropped} thrown away")
        return f"fenced; {left['num_dropped']} fragments thrown away; {account.stored:,} rows stored, none twice"
