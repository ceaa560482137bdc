"""Drills on the command itself: signals, at any moment."""

from __future__ import annotations

import json
import signal
import time

from tests.drills.experiments import apex
from tests.drills.scene import Scene, check, checkpoints_of, drill, stop

MOMENTS = (
    *((0.5, signal.SIGINT), (1.5, signal.SIGTERM), (2.5, signal.SIGINT), (2.5, signal.SIGTERM)),
    *((4.0, signal.SIGINT), (4.0, signal.SIGTERM), (5.5, signal.SIGINT)),
)
"""Seconds after the start, and what is sent then."""
LONGEST_END_S = 15.0
"""After which a run has said that Ray is gone, and has ended."""


def stop_by(scene: Scene, number: int, exit_code: int) -> str:
    """Stop a run that learns with a signal; check what is kept and said."""
    command = scene.start("run", scene.write("drill.yaml", apex()), "--out", scene.out, "--json")
    command.wait_for_result(lambda row: row["training_iteration"] >= 3)
    asked = time.monotonic()
    command.process.send_signal(number)
    code = command.end()
    took_s = time.monotonic() - asked
    check(code == exit_code, f"exit {code}, not {exit_code}: {command.stderr[-300:]}")
    check(took_s < 10, f"took {took_s:.1f} s")
    last = [event["result"]["training_iteration"] for event in command.events if event["event"] == "result"][-1]
    newest = checkpoints_of(scene.out / "drill")[-1]
    check(newest.name == f"checkpoint_{last:06d}", f"iteration {last} was reported, {newest.name} kept")
    return f"exit {code} after {took_s:.1f} s, iteration {last} kept"


@drill(3, "ctrl-c")
def ctrl_c(scene: Scene) -> str:
    """SIGINT while it learns."""
    return stop_by(scene, signal.SIGINT, 130)


@drill(4, "sigterm")
def sigterm(scene: Scene) -> str:
    """SIGTERM while it learns, as a cluster's scheduler sends it."""
    return stop_by(scene, signal.SIGTERM, 143)


@drill(48, "signal-during-init")
def signal_during_init(scene: Scene) -> str:
    """SIGINT and SIGTERM while the command, Ray and the trial start."""
    seconds = []
    for delay_s, number in MOMENTS:
        command = scene.start("run", scene.write("drill.yaml", apex()), "--out", scene.out, "--json")
        time.sleep(delay_s)
        asked = time.monotonic()
        command.process.send_signal(number)
        code = command.end()
        seconds.append(time.monotonic() - asked)
        check(seconds[-1] < 10, f"took {seconds[-1]:.1f} s")
        # What is not ready to answer is ended by the signal itself: a shell calls that by the same number.
        check(code in (128 + number, -number), f"exit {code} after {delay_s} s: {command.stderr[-300:]}")
        check("Traceback" not in command.stderr, command.stderr[-300:])
        if not any(event["event"] == "stopping" for event in command.events):  # then trials are asked to save
            check(not list(scene.out.glob("*")), f"left: {list(scene.out.glob('*'))}")
    return "exit 130 and 143 within " + ", ".join(f"{each:.1f} s" for each in seconds)


@drill(38, "ray-gone")
def ray_gone(scene: Scene) -> str:
    """Ray's raylet is killed with -9; in another run its gcs_server."""
    said = [kill_server(scene, name) for name in ("raylet", "gcs_server")]
    run = scene.out / "gcs_server"
    newest = checkpoints_of(run)[-1].name
    again = scene.start("resume", run, "--json")
    first = again.wait_for_result()["training_iteration"]
    check(newest == f"checkpoint_{first - 1:06d}", f"{newest} is the newest, went on with iteration {first}")
    stop(again)
    return "; ".join(said)


def kill_server(scene: Scene, name: str) -> str:
    """Kill one of Ray's own processes while a run learns; check what is said and kept."""
    file = scene.write(f"{name}.yaml", apex())
    command = scene.start("run", file, "--out", scene.out, "--name", name, "--json")
    command.wait_for_result(lambda row: row["training_iteration"] >= 3)
    (server,) = [process for process in scene.processes() if process.name() == name]
    killed = time.monotonic()
    server.kill()
    code = command.end()
    took_s = time.monotonic() - killed
    check(code == 5, f"exit {code}: {command.stderr[-300:]}")
    check(took_s < LONGEST_END_S, f"it took {took_s:.1f} s to end")
    error, hint = command.stderr.splitlines()
    check(f"Ray stopped: its process {name} (pid {server.pid}) ended unexpectedly" in error, error)
    check("checkpoint_" in hint and f"rlexp resume {scene.out / name}" in hint, hint)
    run = command.events[-1]["run"]
    statuses = run["status"], run["trials"][0]["status"]
    check(command.events[-1]["event"] == "end" and statuses == ("ERROR", "STOPPED"), f"statuses {statuses}")
    newest = checkpoints_of(scene.out / name)[-1].name
    check(newest in hint, f"{newest} is the newest, not {hint}")
    return f"{name}: exit 1 after {took_s:.1f} s"


@drill(77, "timeout")
def timeout(scene: Scene) -> str:
    """``timeout`` sends SIGTERM to the command, then to it and all processes of its group, in the midst of training."""
    arguments = ("run", scene.write("drill.yaml", apex()), "--out", scene.out, "--name", "drill", "--json")
    command = scene.run_in_shell("exec timeout 20", *arguments)
    check(command.process.returncode == 124, f"exit {command.process.returncode}: {command.stderr[-300:]}")
    last = [event["result"]["training_iteration"] for event in command.events if event["event"] == "result"][-1]
    run = scene.out / "drill"
    newest = checkpoints_of(run)[-1]
    check(newest.name == f"checkpoint_{last:06d}", f"iteration {last} was reported, {newest.name} kept")
    status = json.loads((run / "run.json").read_bytes())["status"]
    check(status == "STOPPED", f"the run is called {status}")
    return f"{status}, iteration {last} kept"
