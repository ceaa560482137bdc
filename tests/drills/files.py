"""Drills on files: experiments, outputs and run directories that are not as they should be."""

from __future__ import annotations

import json
import signal
import stat
import time

from tests.drills.experiments import apex, dqn
from tests.drills.scene import Scene, check, drill


def refused(scene: Scene, code: int, said: str, *arguments: object) -> str:
    """Check that a command ends with ``code`` and says ``said`` on stderr, without a traceback."""
    command = scene.run(*arguments)
    ended = command.process.returncode
    check(ended == code, f"exit {ended}, not {code}: {command.stderr[-300:]}")
    check(said in command.stderr, f"{said!r} is not in {command.stderr[-300:]!r}")
    check("Traceback" not in command.stderr, command.stderr[-300:])
    return command.stderr.strip().splitlines()[0]


@drill(17, "yaml-unknown-key", pace="fast")
def yaml_unknown_key(scene: Scene) -> str:
    """Two keys with a typo; both are told, with their places."""
    text = apex().replace("num_workers", "num_wokers").replace("fcnet_hiddens", "fcnet_hidden")
    line = refused(scene, 2, "num_workers", "run", scene.write("drill.yaml", text), "--out", scene.out)
    refused(scene, 2, "fcnet_hiddens", "run", scene.write("drill.yaml", text), "--out", scene.out)
    check(not scene.out.exists(), "something was created")
    return line


@drill(18, "yaml-dup-key", pace="fast")
def yaml_dup_key(scene: Scene) -> str:
    """A key that stands there twice."""
    text = apex().replace("    seed: 0\n", "    seed: 0\n    seed: 1\n")
    return refused(scene, 2, "seed", "run", scene.write("drill.yaml", text), "--out", scene.out)


@drill(22, "two-runs-one-dir")
def two_runs_one_dir(scene: Scene) -> str:
    """A second run of the same name, while the first one runs and afterwards."""
    file = scene.write("drill.yaml", apex())
    first = scene.start("run", file, "--out", scene.out, "--name", "one", "--json")
    first.wait_for_result()
    while_running = refused(scene, 3, "one", "run", file, "--out", scene.out, "--name", "one", "--overwrite")
    first.process.send_signal(signal.SIGINT)
    code = first.end()
    check(code == 130, f"exit {code}")
    before = (scene.out / "one/run.json").read_bytes()
    refused(scene, 2, "one", "run", file, "--out", scene.out, "--name", "one")
    check((scene.out / "one/run.json").read_bytes() == before, "the first run's files were touched")
    return while_running


@drill(26, "infeasible", pace="fast")
def infeasible(scene: Scene) -> str:
    """More CPUs than the machine has."""
    text = apex(workers=500).replace("num_cpus_per_worker: 0", "num_cpus_per_worker: 1")
    return refused(scene, 4, "CPUs", "run", scene.write("drill.yaml", text), "--out", scene.out)


@drill(36, "readonly-out", pace="fast")
def readonly_out(scene: Scene) -> str:
    """An output folder that cannot be one: a file is in the way."""
    (scene.folder / "file").write_text("", encoding="utf-8")
    return refused(scene, 2, "file", "run", scene.write("drill.yaml", apex()), "--out", scene.folder / "file")


@drill(45, "token-perms")
def token_perms(scene: Scene) -> str:
    """No file of Ray's with a secret that others could read."""
    command = scene.start("run", scene.write("drill.yaml", apex()), "--out", scene.out, "--json")
    command.wait_for_result()
    tokens = list(scene.folder.rglob("auth_token"))
    modes = {stat.filemode(path.stat().st_mode) for path in tokens}
    command.process.send_signal(signal.SIGTERM)
    command.end()
    check(modes == {"-rw-------"}, f"tokens {tokens} have {modes}")
    return f"{len(tokens)} token, -rw-------"


@drill(47, "path-traversal", pace="fast")
def path_traversal(scene: Scene) -> str:
    """A name that would lead out of the output folder."""
    before = set(scene.folder.iterdir())
    line = refused(
        scene, 2, "..", "run", scene.write("drill.yaml", apex()), "--out", scene.out, "--name", "../../outside"
    )
    created = {path.name for path in set(scene.folder.iterdir()) - before} - {"drill.yaml"}
    check(not created, f"{created} was created")
    return line


@drill(19, "yaml-types", pace="fast")
def yaml_types(scene: Scene) -> str:
    """Numbers that YAML 1.1 takes for something else are read as they are meant, or refused."""
    good = apex().replace("    seed: 0\n", "    seed: 0\n    lr: 1e-4\n")
    command = scene.run("check", scene.write("good.yaml", good), "--json")
    check(command.process.returncode == 0, command.stderr[-300:])
    for bad in ("lr: true", "lr: 1:30", "lr: .nan", "n_step: 3.7", "double_q: 'no'"):
        text = apex().replace("    seed: 0\n", f"    seed: 0\n    {bad}\n")
        refused(scene, 2, bad.split(":")[0], "check", scene.write("bad.yaml", text))
    text = apex().replace("    seed: 0\n", "    seed: 0\n    n_step: 012\n")
    refused(scene, 2, "bad.yaml:9:13  012 starts with 0", "check", scene.write("bad.yaml", text))
    return "1e-4 is a number; true, 1:30, .nan, 3.7, 012 and 'no' are errors with their places"


@drill(20, "yaml-bomb")
def yaml_bomb(scene: Scene) -> str:
    """Files that would fill the memory, crash a parser or are no experiments at all."""
    aliases = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    bombs = {
        "aliases": aliases.encode(),
        "brackets": b"[" * 200_000,
        "nul": b"a: \0",
        "tab": b"a:\n\tb: 1",
        "latin": "a: \xe4".encode("latin-1"),
        "empty": b"",
        "list": b"- 1\n- 2\n",
        "number": b"3",
        "two": b"a: 1\n---\nb: 2\n",
    }
    slowest = 0.0
    for name, content in bombs.items():
        path = scene.folder / f"{name}.yaml"
        path.write_bytes(content)
        command = scene.run("check", path)
        took_s = time.monotonic() - command.started_s
        slowest = max(slowest, took_s)
        check(command.process.returncode == 2, f"{name}: exit {command.process.returncode}: {command.stderr[-200:]}")
        check("Traceback" not in command.stderr and "error" in command.stderr, f"{name}: {command.stderr[-200:]}")
        check(took_s < 10, f"{name} took {took_s:.1f} s")
    return f"{len(bombs)} files, exit 2 each, the slowest after {slowest:.1f} s"


@drill(28, "stop-key-typo", pace="fast")
def stop_key_typo(scene: Scene) -> str:
    """A ``stop`` that no result will ever have."""
    text = apex().replace("timesteps_total", "timestep_total")
    return refused(scene, 2, "timesteps_total", "run", scene.write("drill.yaml", text), "--out", scene.out)


@drill(16, "bad-shape", pace="fast")
def bad_shape(scene: Scene) -> str:
    """An env whose observations are not what its space says."""
    file = scene.write("drill.yaml", dqn(env="tests.drills.envs:WrongShape"))
    line = refused(scene, 2, "shape (2,)", "run", file, "--out", scene.out)
    check(not scene.out.exists(), "something was created")
    return line


@drill(21, "oom-shard", pace="fast")
def oom_shard(scene: Scene) -> str:
    """Replay that this machine's memory could not hold."""
    text = dqn().replace("buffer_size: 5000", "buffer_size: 100000000000")
    line = refused(scene, 4, "buffer_size", "run", scene.write("drill.yaml", text), "--out", scene.out)
    check(not scene.out.exists(), "something was created")
    return line


@drill(6, "disk-full")
def disk_full(scene: Scene) -> str:
    """The disk that the run writes to is full after some checkpoints."""
    file = scene.write("drill.yaml", dqn(checkpoint_freq=1))
    command = scene.run_with_small_disk(scene.out, "600k", "run", file, "--out", scene.out, "--json")
    code = command.process.returncode
    check(code == 1, f"exit {code}: {command.stderr[-300:]}")
    said = command.stderr + json.dumps(command.events)
    check("No space left on device" in said, f"it says nothing of the disk: {said[-300:]}")
    check("Traceback" not in command.stderr, command.stderr[-300:])
    return next(line for line in said.splitlines() if "No space left" in line)[:120]


@drill(35, "tmp-full")
def tmp_full(scene: Scene) -> str:
    """The folder for temporary files, where Ray keeps its own, is full."""
    file, small = scene.write("drill.yaml", dqn(steps=1000)), scene.folder / "small"
    command = scene.run_with_small_disk(small, "100k", "run", file, "--out", scene.out, "--json", TMPDIR=str(small))
    code = command.process.returncode
    check(code in (1, 4), f"exit {code}: {command.stderr[-300:]}")
    check("Traceback" not in command.stderr, command.stderr[-300:])
    check(str(small) in command.stderr, f"it does not name the folder: {command.stderr[-300:]}")
    return command.stderr.strip().splitlines()[0][:120]
