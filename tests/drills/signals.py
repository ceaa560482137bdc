"""Drills on the command itself: signals, at any moment, and standing still for a while, also with Ctrl-Z."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import psutil

from tests.drills.runs import (
    apex,
    check_newest_is_last,
    check_no_step_twice,
    checkpoints_of,
    iteration_of,
    resumed,
    rows_of,
)
from tests.drills.scene import DEADLINE_S, REPOSITORY, Scene, check, drill
from tests.drills.workers import goes_on_and_stops

MOMENTS = (
    *((0.5, signal.SIGINT), (1.5, signal.SIGTERM), (2.5, signal.SIGINT), (2.5, signal.SIGTERM)),
    *((4.0, signal.SIGINT), (4.0, signal.SIGTERM), (5.5, signal.SIGINT)),
)
"""Seconds after the start, and what is sent then."""
LONGEST_END_S = 15.0
"""After which a run has said that Ray is gone, and has ended."""
PAUSE_S = 30.0
SHORT_PAUSE_S = 8.0
"""Longer than the ``sample_timeout_s`` of the drills' Ape-X."""
PROMPT = "ready>"


def stop_by(scene: Scene, number: signal.Signals) -> str:
    """Stop a run that learns with a signal; check what is kept and said."""
    command = scene.start_run(apex())
    command.wait_for_result(lambda row: row["training_iteration"] >= 3)
    took_s = command.stop(number)
    check(took_s < 10, f"took {took_s:.1f} s")
    last = check_newest_is_last(command, scene.out / "drill")
    return f"exit {128 + number} after {took_s:.1f} s, iteration {last} kept"


@drill(3, "ctrl-c")
def ctrl_c(scene: Scene) -> str:
    """SIGINT while it learns."""
    return stop_by(scene, signal.SIGINT)


@drill(4, "sigterm")
def sigterm(scene: Scene) -> str:
    """SIGTERM while it learns, as a cluster's scheduler sends it."""
    return stop_by(scene, signal.SIGTERM)


@drill(48, "signal-during-init")
def signal_during_init(scene: Scene) -> str:
    """SIGINT and SIGTERM while the command, Ray and the trial start."""
    seconds = []
    for delay_s, number in MOMENTS:
        command = scene.start_run(apex())
        time.sleep(delay_s)
        asked = time.monotonic()
        command.process.send_signal(number)
        # What is not ready to answer is ended by the signal itself: a shell calls that by the same number.
        command.end_with(128 + number, -number)
        seconds.append(time.monotonic() - asked)
        check(seconds[-1] < 10, f"took {seconds[-1]:.1f} s")
        if not command.events_of("stopping"):  # then trials are asked to save
            check(not list(scene.out.glob("*")), f"left: {list(scene.out.glob('*'))}")
    return "exit 130 and 143 within " + ", ".join(f"{each:.1f} s" for each in seconds)


@drill(38, "ray-gone")
def ray_gone(scene: Scene) -> str:
    """Ray's raylet is killed with -9; in another run its gcs_server."""
    said = [kill_server(scene, name) for name in ("raylet", "gcs_server")]
    run = scene.out / "gcs_server"
    resumed(scene, run, iteration_of(checkpoints_of(run)[-1])).stop()
    return "; ".join(said)


def kill_server(scene: Scene, name: str) -> str:
    """Kill one of Ray's own processes while a run learns; check what is said and kept."""
    command = scene.start_run(apex(), name=name)
    command.wait_for_result(lambda row: row["training_iteration"] >= 3)
    (server,) = [process for process in scene.processes() if process.name() == name]
    killed = time.monotonic()
    server.kill()
    command.end_with(5)
    took_s = time.monotonic() - killed
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
    command.end_with(124)
    run = scene.out / "drill"
    last = check_newest_is_last(command, run)
    status = json.loads((run / "run.json").read_bytes())["status"]
    check(status == "STOPPED", f"the run is called {status}")
    return f"{status}, iteration {last} kept"


@drill(71, "sigstop-all")
def sigstop_all(scene: Scene) -> str:
    """All processes of a run are stopped by a signal for 30 seconds, then the command alone for 8."""
    command = scene.start_run(apex())
    row = command.wait_until_it_learns()
    pauses = {PAUSE_S: scene.processes(), SHORT_PAUSE_S: [psutil.Process(command.process.pid)]}
    for pause_s, stopped in pauses.items():
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in stopped:
                process.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(pause_s)  # the pause is what is drilled
        paused_at = row["training_iteration"]
        row = command.wait_for_result(lambda row: row["training_iteration"] > paused_at + 3)  # noqa: B023
    goes_on_and_stops(command, row)
    check_no_step_twice(scene.out / "drill")
    check(not any("worker" in note for note in command.notes), f"notes {command.notes}")
    return f"no worker replaced; {row['training_iteration']} iterations, none twice"


class Terminal:
    """A shell with job control in a terminal of its own, which somebody types into; ended by its scene."""

    def __init__(self, scene: Scene) -> None:
        self._master, slave = pty.openpty()
        self.text = ""
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=REPOSITORY,
            env={**scene.environment(), "PS1": PROMPT, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Type some keys; what is seen from now on is what is waited for."""
        self.text = ""
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        """Return where a regular expression is first seen on the screen since the last keys."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.text)) is None:
            check(self._read(deadline - time.monotonic()), f"no {pattern!r} on the screen: {self.text[-500:]!r}")
        return found

    def close(self) -> None:
        """Hang up, and wait until the shell has ended."""
        os.close(self._master)
        try:
            self._shell.wait(DEADLINE_S)
        finally:
            self._shell.kill()
            self._shell.wait()

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._master], [], [], max(timeout_s, 0))[0]:
            return False
        self.text += os.read(self._master, 65536).decode(errors="replace")
        return True


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@drill(72, "ctrl-z")
def ctrl_z(scene: Scene) -> str:
    """Ctrl-Z in a terminal, ``fg`` after 8 seconds, then Ctrl-C."""
    file = scene.write("drill.yaml", apex())
    terminal = Terminal(scene)
    try:
        terminal.wait_for(PROMPT)
        terminal.type(f"{sys.executable} -m rlexp run {file} --out {scene.out} --json\n")
        terminal.wait_for(r'"training_iteration": 5,')
        terminal.type("\x1a")
        terminal.wait_for("Stopped.*\r\n.*" + PROMPT)
        before = len(rows_of(scene.out / "drill"))
        time.sleep(SHORT_PAUSE_S)  # the pause is what is drilled
        rows = len(rows_of(scene.out / "drill"))
        check(rows <= before + 1, f"{rows - before} rows were written while it was stopped")
        terminal.type("fg\n")
        terminal.wait_for(rf'"training_iteration": {rows + 4},')
        notes = re.findall(r'"event": "note".*worker.*', terminal.text)
        check(not notes, f"notes {notes}")
        terminal.type("\x03")
        terminal.wait_for(PROMPT)
        terminal.type("echo code $?\n")
        code = terminal.wait_for(r"code (\d+)\r\n")[1]
        check(code == "130", f"exit {code}")
    finally:
        terminal.close()
    check_no_step_twice(scene.out / "drill")
    return f"stopped after {rows} iterations; exit 130 after {len(rows_of(scene.out / 'drill'))}, none twice"
