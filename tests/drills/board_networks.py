"""Drills on what lies between actors, boards and trainers: slow, lossy, cut, repeating, mixing, and wrong clocks."""

from __future__ import annotations

import os
import time

from tests.drills.board_scene import BoardScene, board_scene, check_exact, finish, grown
from tests.drills.links import NEAR, Impairment, Link, Tampering, linked, tampered
from tests.drills.scene import Command, Scene, check, drill
from tests.lab.brokers import LOGIN, Mosquitto, running_queue

CUT_S = 12.0
"""Four leases of these drills, as 60 seconds are of a lease of 15."""
ROUND_TRIP_S = 0.077
DAY_S = 86400
OTHER_CLOCK = """
import os, time

_time, _time_ns, _offset_s = time.time, time.time_ns, int(os.environ["DRILL_CLOCK_S"])
time.time = lambda: _time() + _offset_s
time.time_ns = lambda: _time_ns() + _offset_s * 10**9
"""
"""What Python runs first in a process whose wall clock is another; as on such a machine, no other clock is."""


def far_actor(board: BoardScene, link: Link, *words: object) -> Command:
    """Start an actor at the far host of a link."""
    board.prefix, board.url = link.prefix, f"redis://{link.servers[0]}"
    return board.join(*words)


def over(scene: Scene, impairment: Impairment, step_s: float = 0.005, steps: int = 2000) -> str:
    """Let an actor play over such a network; check that all it sent is stored once."""
    with board_scene(scene) as board, linked(board.server.port) as link:
        board.step_s = step_s
        run = board.run()
        link.impairment = impairment
        actor = far_actor(board, link)
        row = run.wait_until_it_learns()
        started_s = time.monotonic()
        after = grown(run, row, steps)
        rate = (after["timesteps_total"] - row["timesteps_total"]) / (time.monotonic() - started_s)
        info = after["info"]["board"]
        account = finish(board, run, actor)
        check(link.num_packets > 100, "nothing went over the link")
        lost = f"{link.num_lost} of {link.num_packets} packets lost"
        check(not info["num_lost_leases"], f"{info['num_lost_leases']} leases were lost; {lost}")
        return f"{rate:,.0f} steps/s; {lost}; {check_exact(account)}"


@drill(109, "board-77-ms")
def slow_network(scene: Scene) -> str:
    """An actor's network has a round trip of 77 ms."""
    return over(scene, Impairment(delay_s=ROUND_TRIP_S / 2), step_s=0.0002, steps=8000)


@drill(110, "board-loss")
def lossy_network(scene: Scene) -> str:
    """Of the packets of an actor's network, 5 % are lost each way; more come twice, or late."""
    return over(scene, Impairment(delay_s=0.01, loss=0.05, repeated=0.05, late=0.05))


@drill(111, "board-cut-actor")
def cut_actor(scene: Scene) -> str:
    """An actor's network is cut for four leases: no packet comes through, and no connection is closed."""
    with board_scene(scene) as board, linked(board.server.port) as link:
        run = board.run(window=8)
        return cut(board, link, run, far_actor(board, link))


@drill(112, "board-cut-trainer")
def cut_trainer(scene: Scene) -> str:
    """The same, of the trainer."""
    with board_scene(scene) as board, linked(board.server.port) as link:
        actor = board.join()
        board.prefix, board.url = link.prefix, f"redis://{link.servers[0]}"
        return cut(board, link, board.run(window=8), actor)


def cut(board: BoardScene, link: Link, run: Command, actor: Command) -> str:
    """Cut a link for a while; check that all goes on, and nothing was lost or counted twice."""
    row = grown(run, run.wait_until_it_learns())
    link.impairment = Impairment(cut=frozenset(NEAR))
    time.sleep(CUT_S)  # the time without the network is what is drilled
    link.impairment = Impairment()
    back_s = time.monotonic()
    row = grown(run, row)
    took_s = time.monotonic() - back_s
    told = check_exact(finish(board, run, actor))
    return f"cut for {CUT_S:g} s; on {took_s:.1f} s after; {row['info']['board']['num_repeated']} came again; {told}"


@drill(113, "board-duplicates")
def duplicates(scene: Scene) -> str:
    """Every third fragment comes twice, and every twentieth is lost on its way."""
    return tampered_run(scene, Tampering(loss=0.05, repeated=0.33), "repeated")


@drill(114, "board-reordered")
def reordered(scene: Scene) -> str:
    """Every third fragment is overtaken by later ones, and every twentieth is lost on its way."""
    return tampered_run(scene, Tampering(loss=0.05, late=0.33), "late")


def tampered_run(scene: Scene, tampering: Tampering, what: str) -> str:
    """Let two actors play over a network that does that; check that all they sent is stored once."""
    with board_scene(scene) as board, tampered(board.server.port, tampering) as server:
        run = board.run(min_actors=2)
        board.url = f"redis://127.0.0.1:{server.port}"
        actors = [board.join(), board.join()]
        grown(run, run.wait_until_it_learns(), steps=1500)
        told = check_exact(finish(board, run, *actors))
        info = run.rows[-1]["info"]["board"]
        counts = tampering.counts
        check(counts[what] > 10 and counts["lost"], f"{counts}")
        return f"{counts}; {info['num_repeated']} came again; {told}"


@drill(115, "board-clock")
def clocks(scene: Scene) -> str:
    """The clock of one actor is a day behind, that of another a day ahead of all others."""
    scene.write("sitecustomize.py", OTHER_CLOCK)
    with board_scene(scene) as board:
        run = board.run(min_actors=2)
        path = os.pathsep.join(filter(None, (str(scene.folder), os.environ.get("PYTHONPATH"))))
        actors = [board.join(variables={"PYTHONPATH": path, "DRILL_CLOCK_S": str(days * DAY_S)}) for days in (-1, 1)]
        row = grown(run, run.wait_until_it_learns(), steps=800)
        off_s = [actor.wait_for("word", lambda event: True)["time"] - time.time() for actor in actors]
        check(max(abs(off_s[0] + DAY_S), abs(off_s[1] - DAY_S)) < 600, f"clocks are off by {off_s}")
        check(not row["info"]["board"]["num_lost_leases"], f"{row['info']['board']}")
        told = check_exact(finish(board, run, *actors))
        return f"off by {off_s[0] / 3600:.1f} and {off_s[1] / 3600:+.1f} h; no lease lost; {told}"


@drill(116, "board-two-hosts")
def two_hosts(scene: Scene) -> str:
    """Board and queue are on two hosts, each of which cannot be reached for some seconds, one after the other."""
    with (
        board_scene(scene) as board,
        running_queue(Mosquitto()) as queue,
        linked(board.server.port, queue.port) as link,
    ):
        run = board.run("--queue", queue.url, actors=1, window=8)
        user, password = LOGIN
        actor = far_actor(board, link, "--queue", f"mqtt://{user}:{password}@{link.servers[1]}")
        row = grown(run, run.wait_until_it_learns())
        lost = []
        for host in reversed(NEAR):
            link.impairment = Impairment(cut=frozenset({host}))
            time.sleep(CUT_S / 2)  # the time without it is what is drilled
            link.impairment = Impairment()
            row = grown(run, row)
            lost.append(row["info"]["board"]["num_lost_leases"])
        check(lost[0] == 0, f"{lost[0]} seats were lost while only the queue was away")
        told = check_exact(finish(board, run, actor))
        return f"leases lost: {lost[0]} without the queue, {lost[1]} without the board; {told}"
