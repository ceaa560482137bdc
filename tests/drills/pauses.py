"""Drills on commands that stand still for a while: stopped by a signal, or by their user with Ctrl-Z."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.test_trial_nodes import BACK_S, seconds_until_rows_after_a_cut
from tests.drills.experiments import apex
from tests.drills.scene import DEADLINE_S, Scene, check, check_no_step_twice, drill, rows_of
from tests.drills.workers import goes_on_and_stops

PAUSE_S = 30.0
SHORT_PAUSE_S = 8.0
"""Longer than the ``sample_timeout_s`` of the drills' Ape-X."""
PROMPT = "ready>"


def is_well_after(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a row of results is more than three iterations after an older one."""
    went_on: bool = new["training_iteration"] > old["training_iteration"] + 3
    return went_on


@drill(71, "sigstop-all")
def sigstop_all(scene: Scene) -> str:
    """All processes of a run are stopped by a signal for 30 seconds, then the command alone for 8."""
    command = scene.start("run", scene.write("drill.yaml", apex()), "--out", scene.out, "--json")
    row = command.wait_for_result(lambda row: row["info"]["num_updates"] > 10)
    pauses = {PAUSE_S: scene.processes(), SHORT_PAUSE_S: [psutil.Process(command.process.pid)]}
    for pause_s, stopped in pauses.items():
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in stopped:
                process.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(pause_s)  # the pause is what is drilled
        row = command.wait_for_result(partial(is_well_after, row))
    goes_on_and_stops(command, row)
    check_no_step_twice(scene.out / "drill")
    notes = [event["text"] for event in command.events if event["event"] == "note"]
    check(not any("worker" in note for note in notes), f"notes {notes}")
    return f"no worker replaced; {row['training_iteration']} iterations, none twice"


class Terminal:
    """A shell with job control in a terminal of its own, which somebody types into; ended by its scene."""

    def __init__(self, scene: Scene) -> None:
        self._master, slave = pty.openpty()
        self.text = ""
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=Path(__file__).parents[2],
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


@drill(126, "node-link")
def node_link(scene: Scene) -> str:
    """The link of the trial's node is away for 20 s, and no other node has room: the trial goes on where it is."""
    took_s = seconds_until_rows_after_a_cut(scene.folder)
    check(took_s < BACK_S, f"{took_s:.1f} s after the link is back")
    return f"four rows {took_s:.1f} s after the link is back"
