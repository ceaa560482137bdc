"""Drills on where and how commands run: beside each other, on small disks, with few rights, and killed half way."""

from __future__ import annotations

import signal
import stat
import sys
import time
from pathlib import Path

from tests.drills.experiments import apex, dqn
from tests.drills.malice import contents
from tests.drills.scene import (
    REPOSITORY,
    Scene,
    check,
    check_no_step_twice,
    checkpoints_of,
    drill,
    iteration_of,
    stop,
    stopped_run,
)

MOMENTS = (
    *((0.5, signal.SIGKILL), (0.8, signal.SIGKILL), (0.9, signal.SIGKILL), (0.95, signal.SIGKILL)),
    *((0.9, signal.SIGTERM), (0.9, signal.SIGINT)),
)
"""Shares of the time that a command takes, and what is sent then."""
LONG_EVALUATION = 1_000_000
AT_ONCE = 4


@drill(73, "kill-readers")
def kill_readers(scene: Scene) -> str:
    """``evaluate``, ``compare --html`` and ``convert`` are ended by -9, SIGTERM and SIGINT at several moments."""
    run, report = stopped_run(scene, dqn()), scene.folder / "report.html"
    before = contents(run)
    commands = {
        ("evaluate", run, "--episodes", LONG_EVALUATION): 6.0,
        ("compare", run, "--html", report): 0.0,
        ("convert", scene.folder / "drill.yaml"): 0.0,
    }
    count = 0
    for words, seconds in commands.items():
        if not seconds:
            whole = scene.run(*words)
            check(whole.process.returncode == 0, whole.stderr[-300:])
            seconds = time.monotonic() - whole.started_s
        for share, number in MOMENTS:
            report.unlink(missing_ok=True)
            end_after(scene, share * seconds, number, *words)
            check(not report.exists() or "</html>" in report.read_text(), f"{words[0]} left half a report")
            check(contents(run) == before, f"{words[0]} has changed the run")
            count += 1
        check(not scene.lingering(), f"still there: {scene.lingering()}")
    done = scene.run("evaluate", run, "--episodes", 1)
    check(done.process.returncode == 0, done.stderr[-300:])
    left = {path.name for path in scene.folder.iterdir()} - {"out", "drill.yaml", "report.html"}
    check(all(name.startswith(".report.html.") for name in left), f"left: {left}")
    return f"{count} times; the run unchanged, no half report, {len(left)} hidden files left"


def end_after(scene: Scene, seconds: float, number: signal.Signals, *words: object) -> None:
    """End a command by a signal after a time, unless it has ended; check what it says."""
    command = scene.start(*words)
    time.sleep(seconds)  # the moment is what is drilled
    if command.process.poll() is None:
        command.process.send_signal(number)
    code = command.end()
    check(code in (0, -number, 128 + number), f"{words[0]}: exit {code} by {number.name}: {command.stderr[-300:]}")
    check("Traceback" not in command.stderr, f"{words[0]}: {command.stderr[-300:]}")


@drill(74, "four-one-out")
def four_one_out(scene: Scene) -> str:
    """Four runs of a file start at once in one ``--out``; four more with the same ``--name``."""
    file = scene.write("drill.yaml", dqn(steps=1000))
    words = ("run", file, "--out", scene.out, "--json", "--fit")
    for command in [scene.start(*words) for _ in range(AT_ONCE)]:
        code = command.end()
        check(code == 0, f"exit {code}: {command.stderr[-300:]}")
    runs = sorted(path.name for path in scene.out.iterdir())
    check(len(runs) == AT_ONCE, f"runs {runs}")
    for run in runs:
        check_no_step_twice(scene.out / run)
        check(checkpoints_of(scene.out / run), f"{run} has no checkpoint")
    same = [scene.start(*words, "--name", "same") for _ in range(AT_ONCE)]
    codes = sorted(command.end() for command in same)
    check(codes[0] == 0 and set(codes[1:]) <= {2, 3}, f"exit {codes}")
    check(not any("Traceback" in command.stderr for command in same), "a traceback")
    check_no_step_twice(scene.out / "same")
    return f"{', '.join(runs)}, each whole; with one name exit {codes}"


@drill(75, "disk-fills")
def disk_fills(scene: Scene) -> str:
    """The disk becomes full in the middle of a checkpoint of 32 MB; ``resume`` goes on where there is room."""
    text = dqn(checkpoint_freq=1, min_iter_time_s=0.2).replace("fcnet_hiddens: [32]", "fcnet_hiddens: [1024, 1024]")
    file, kept = scene.write("drill.yaml", text), scene.folder / "kept"
    scene.out.mkdir()
    script = f"mount -t tmpfs -o size=110m none {scene.out} && trap 'cp -a {scene.out} {kept}' EXIT &&"
    command = scene.run_in_shell(script, "run", file, "--out", scene.out, "--json")
    code = command.process.returncode
    check(code == 1, f"exit {code}: {command.stderr[-300:]}")
    (said,) = [event["message"] for event in command.events if event["event"] == "trial_end"]
    check("No space left on device" in said and "cannot write checkpoint" in said, said)
    check("Traceback" not in command.stderr, command.stderr[-300:])
    run = kept / "drill"
    check(not list(run.rglob("*.writing")), "half a checkpoint was left")
    newest = iteration_of(checkpoints_of(run)[-1])
    again = scene.start("resume", run, "--json")
    first = again.wait_for_result()["training_iteration"]
    check(first == newest + 1, f"checkpoint {newest}, went on with iteration {first}")
    stop(again)
    check_no_step_twice(run)
    return f"{said.partition(': ')[2]}; went on from {newest}"


@drill(76, "bare-machine")
def bare_machine(scene: Scene) -> str:
    """256 open files; no HOME; umask 077; nothing that is installed can be written. Each a run of its own."""
    read_only = "".join(f"mount --bind {path} {path} && mount -o remount,bind,ro {path} && " for path in installed())
    scripts = {
        "few-files": "ulimit -n 256 && exec",
        "no-home": "unset HOME && exec",
        "umask": "umask 077 && exec",
        "read-only": f"{read_only} cd {REPOSITORY} && ! touch tests/x && ! touch {sys.prefix}/x && exec",
    }
    for name, script in scripts.items():
        file = scene.write(f"{name}.yaml", apex(steps=1000))
        command = scene.run_in_shell(script, "run", file, "--out", scene.out, "--name", name, "--json")
        code = command.process.returncode
        check(code == 0, f"{name}: exit {code}: {command.stderr[-300:]}")
        said = [line for line in command.stderr.splitlines() if not line.startswith("touch: ")]
        check(not said, f"{name} says {said}")
        check_no_step_twice(scene.out / name)
        check(checkpoints_of(scene.out / name), f"{name}: no checkpoint")
    modes = {stat.filemode(path.stat().st_mode)[4:] for path in (scene.out / "umask").rglob("*")}
    check(modes == {"------"}, f"umask 077: others may {modes}")
    return f"{', '.join(scripts)}: exit 0, nothing on stderr"


def installed() -> list[Path]:
    """Return the folders with all that is installed; a folder below another one comes after it."""
    return sorted({REPOSITORY, Path(sys.prefix)})
