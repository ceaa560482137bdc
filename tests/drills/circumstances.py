"""Drills on where and how commands run: beside each other, on small disks, with few rights, and killed half way.

And on envs that load the process they are in: with output, threads, processes and waits. And on secrets in files.
"""

from __future__ import annotations

import json
import signal
import stat
import sys
import time
from pathlib import Path

from tests.drills.malice import contents
from tests.drills.runs import (
    apex,
    check_no_step_twice,
    checkpoints_of,
    dqn,
    iteration_of,
    refused_run,
    resumed,
    stopped_run,
)
from tests.drills.scene import REPOSITORY, Command, Scene, check, drill
from tests.drills.workers import WORKER, goes_on_and_stops

MOMENTS = (
    *((0.5, signal.SIGKILL), (0.8, signal.SIGKILL), (0.9, signal.SIGKILL), (0.95, signal.SIGKILL)),
    *((0.9, signal.SIGTERM), (0.9, signal.SIGINT)),
)
"""Shares of the time that a command takes, and what is sent then."""
LONG_EVALUATION = 1_000_000
AT_ONCE = 4
LONGEST_END_S = 20.0
MOST_PRINTED = 1 << 20
"""Characters of a run's own output, whatever its env prints."""


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
            whole = scene.start(*words)
            whole.end_with(0)
            seconds = time.monotonic() - whole.started_s
        for share, number in MOMENTS:
            report.unlink(missing_ok=True)
            end_after(scene, share * seconds, number, *words)
            check(not report.exists() or "</html>" in report.read_text(), f"{words[0]} left half a report")
            check(contents(run) == before, f"{words[0]} has changed the run")
            count += 1
        scene.check_nothing_lingers()
    scene.start("evaluate", run, "--episodes", 1).end_with(0)
    left = {path.name for path in scene.folder.iterdir()} - {"out", "drill.yaml", "report.html"}
    check(all(name.startswith(".report.html.") for name in left), f"left: {left}")
    return f"{count} times; the run unchanged, no half report, {len(left)} hidden files left"


def end_after(scene: Scene, seconds: float, number: signal.Signals, *words: object) -> None:
    """End a command by a signal after a time, unless it has ended; check what it says."""
    command = scene.start(*words)
    time.sleep(seconds)  # the moment is what is drilled
    if command.process.poll() is None:
        command.process.send_signal(number)
    command.end_with(0, -number, 128 + number)


@drill(74, "four-one-out")
def four_one_out(scene: Scene) -> str:
    """Four runs of a file start at once in one ``--out``; four more with the same ``--name``."""
    file = scene.write("drill.yaml", dqn(steps=1000))
    words = ("run", file, "--out", scene.out, "--json", "--fit")
    for command in [scene.start(*words) for _ in range(AT_ONCE)]:
        command.end_with(0)
    runs = sorted(path.name for path in scene.out.iterdir())
    check(len(runs) == AT_ONCE, f"runs {runs}")
    for run in runs:
        check_no_step_twice(scene.out / run)
        check(checkpoints_of(scene.out / run), f"{run} has no checkpoint")
    same = [scene.start(*words, "--name", "same") for _ in range(AT_ONCE)]
    codes = sorted(command.end_with(0, 2, 3) for command in same)
    check(codes.count(0) == 1, f"exit {codes}")
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
    command.end_with(1)
    said = command.last_words
    check("No space left on device" in said and "cannot write checkpoint" in said, said)
    run = kept / "drill"
    check(not list(run.rglob("*.writing")), "half a checkpoint was left")
    newest = iteration_of(checkpoints_of(run)[-1])
    resumed(scene, run, newest).stop()
    check_no_step_twice(run)
    return f"{said.partition(': ')[2]}; went on from {newest}"


@drill(35, "tmp-full")
def tmp_full(scene: Scene) -> str:
    """The folder for temporary files, where Ray keeps its own, is full."""
    file, small = scene.write("drill.yaml", dqn(steps=1000)), scene.folder / "small"
    command = scene.run_with_small_disk(small, "100k", "run", file, "--out", scene.out, "--json", TMPDIR=str(small))
    command.end_with(1, 4)
    check(str(small) in command.stderr, f"it does not name the folder: {command.stderr[-300:]}")
    return command.stderr.strip().splitlines()[0][:120]


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
        command.end_with(0)
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


def started(scene: Scene, env: str, *arguments: object) -> Command:
    """Start an Ape-X run in one of the drills' envs."""
    return scene.start_run(apex(env=f"tests.drills.envs:{env}"), *arguments)


def seconds_to_stop(command: Command) -> float:
    """Stop a run with SIGINT; return how long that took."""
    took_s = command.stop()
    check(took_s < LONGEST_END_S, f"took {took_s:.1f} s")
    return took_s


@drill(67, "env-flood")
def env_flood(scene: Scene) -> str:
    """Every step of the env prints 100 kB to stdout and as much to stderr."""
    command = started(scene, "Flooding")
    row = command.wait_for_result(lambda row: row["timesteps_total"] > 2000)
    took_s = seconds_to_stop(command)
    printed = len(command.stderr) + sum(map(len, command.output))
    check("xxx" not in command.stderr and printed < MOST_PRINTED, f"it printed {printed} characters")
    size = sum(path.stat().st_size for path in scene.folder.rglob("*") if path.is_file())
    check(size < 50e6, f"{size / 1e6:.0f} MB are left")
    return f"{row['timesteps_total']} steps, {row['timesteps_total'] / 5000:.1f} GB printed; ended after {took_s:.1f} s"


@drill(68, "env-crowd")
def env_crowd(scene: Scene) -> str:
    """The env starts a thread and two processes that never end; a worker is killed, then the run is stopped."""
    command = started(scene, "Crowded")
    row = command.wait_until_it_learns()
    scene.one(WORKER).send_signal(signal.SIGKILL)
    command.wait_for_note(r"^worker \d failed.*replaced in")
    goes_on_and_stops(command, row)
    scene.check_nothing_lingers()
    return "a worker replaced; no process left"


@drill(69, "env-slow-reset")
def env_slow_reset(scene: Scene) -> str:
    """``env.reset`` takes 20 seconds, with a ``sample_timeout_s`` above that, and then without."""
    text = dqn(env="tests.drills.envs:SlowToReset", steps=1000)
    alone = scene.start_run(text, name="alone")
    command = started(scene, "SlowToReset", "-o", "sample_timeout_s=60")
    command.wait_for_start()  # 20 s: the env was tried
    row = command.wait_until_it_learns()
    goes_on_and_stops(command, row)
    restarts = row["info"]["num_worker_restarts"]
    check(restarts == 0, f"{restarts} restarts")
    alone.end_with(0)
    return f"no worker replaced; trained {row['timesteps_total']} steps"


@drill(70, "env-hang-close")
def env_hang_close(scene: Scene) -> str:
    """``env.close`` never returns: at once, then only after some steps, in workers and in one process."""
    env, soon, late = "tests.drills.envs:HangingInClose", "{steps: 0}", "{steps: 100}"
    line = refused_run(scene, 2, "close", apex(env=env, env_config=soon))
    texts = {"workers": apex(env=env, env_config=late), "alone": dqn(env=env, env_config=late, min_iter_time_s=0.5)}
    seconds = []
    for name, text in texts.items():
        command = scene.start_run(text, name=name)
        command.wait_until_it_learns()
        seconds.append(seconds_to_stop(command))
        scene.check_nothing_lingers()
        check(checkpoints_of(scene.out / name), "no checkpoint")
    return f"{line}; after some steps: exit 130 after {seconds[0]:.1f} and {seconds[1]:.1f} s"


@drill(46, "secrets")
def secrets(scene: Scene) -> str:
    """A password in ``env_config`` is in no file that others are shown, nor in what is printed."""
    word = "hunter2-of-the-drill"
    command = scene.start_run(dqn(env="tests.drills.envs:WithPassword", env_config=f"{{password: {word}}}"))
    command.wait_for_result(lambda row: row["training_iteration"] >= 2)
    command.stop()
    check(word not in command.stderr + json.dumps(command.events), "it was printed")
    run = scene.out / "drill"
    found = {path.name for path in run.rglob("*") if path.is_file() and word.encode() in path.read_bytes()}
    needed = {"experiment.yaml", "resolved.yaml", "manifest.json", "state.json"}
    check(found <= needed, f"it is in {sorted(found - needed)}")
    check(run.stat().st_mode & 0o077 == 0, "others may look into the run's directory")
    return f"masked; {', '.join(sorted(found))} have it, in a directory for its owner alone"


@drill(45, "token-perms")
def token_perms(scene: Scene) -> str:
    """No file of Ray's with a secret that others could read."""
    command = scene.start_run(apex())
    command.wait_for_result()
    tokens = list(scene.folder.rglob("auth_token"))
    modes = {stat.filemode(path.stat().st_mode) for path in tokens}
    command.stop()
    check(modes == {"-rw-------"}, f"tokens {tokens} have {modes}")
    return f"{len(tokens)} token, -rw-------"
