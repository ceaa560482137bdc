"""Drills on files: experiments, outputs and run directories that are not as they should be."""

from __future__ import annotations

import json
import stat
import time

from tests.drills.runs import apex, dqn, refused, refused_run
from tests.drills.scene import Scene, check, drill


@drill(17, "yaml-unknown-key", pace="fast")
def yaml_unknown_key(scene: Scene) -> str:
    """Two keys with a typo; both are told, with their places."""
    text = apex().replace("num_workers", "num_wokers").replace("fcnet_hiddens", "fcnet_hidden")
    refused_run(scene, 2, "fcnet_hiddens", text)
    return refused_run(scene, 2, "num_workers", text)


@drill(18, "yaml-dup-key", pace="fast")
def yaml_dup_key(scene: Scene) -> str:
    """A key that stands there twice."""
    text = apex().replace("    seed: 0\n", "    seed: 0\n    seed: 1\n")
    return refused_run(scene, 2, "seed", text)


@drill(22, "two-runs-one-dir")
def two_runs_one_dir(scene: Scene) -> str:
    """A second run of the same name, while the first one runs and afterwards."""
    file = scene.write("drill.yaml", apex())
    first = scene.start("run", file, "--out", scene.out, "--name", "one", "--json")
    first.wait_for_result()
    while_running = refused(scene, 3, "one", "run", file, "--out", scene.out, "--name", "one", "--overwrite")
    first.stop()
    before = (scene.out / "one/run.json").read_bytes()
    refused(scene, 2, "one", "run", file, "--out", scene.out, "--name", "one")
    check((scene.out / "one/run.json").read_bytes() == before, "the first run's files were touched")
    return while_running


@drill(26, "infeasible", pace="fast")
def infeasible(scene: Scene) -> str:
    """More CPUs than the machine has."""
    text = apex(workers=500).replace("num_cpus_per_worker: 0", "num_cpus_per_worker: 1")
    return refused_run(scene, 4, "CPUs", text)


@drill(36, "readonly-out", pace="fast")
def readonly_out(scene: Scene) -> str:
    """An output folder that cannot be one: a file is in the way."""
    (scene.folder / "file").write_text("", encoding="utf-8")
    return refused(scene, 2, "file", "run", scene.write("drill.yaml", apex()), "--out", scene.folder / "file")


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


@drill(47, "path-traversal", pace="fast")
def path_traversal(scene: Scene) -> str:
    """A name that would lead out of the output folder."""
    before = set(scene.folder.iterdir())
    line = refused_run(scene, 2, "..", apex(), "--name", "../../outside")
    created = {path.name for path in set(scene.folder.iterdir()) - before} - {"drill.yaml"}
    check(not created, f"{created} was created")
    return line


@drill(19, "yaml-types", pace="fast")
def yaml_types(scene: Scene) -> str:
    """Numbers that YAML 1.1 takes for something else are read as they are meant, or refused."""
    good = apex().replace("    seed: 0\n", "    seed: 0\n    lr: 1e-4\n")
    scene.start("check", scene.write("good.yaml", good), "--json").end_with(0)
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
        started_s = time.monotonic()
        refused(scene, 2, "error", "check", path)
        took_s = time.monotonic() - started_s
        slowest = max(slowest, took_s)
        check(took_s < 10, f"{name} took {took_s:.1f} s")
    return f"{len(bombs)} files, exit 2 each, the slowest after {slowest:.1f} s"


@drill(28, "stop-key-typo", pace="fast")
def stop_key_typo(scene: Scene) -> str:
    """A ``stop`` that no result will ever have."""
    text = apex().replace("timesteps_total", "timestep_total")
    return refused_run(scene, 2, "timesteps_total", text)


@drill(16, "bad-shape", pace="fast")
def bad_shape(scene: Scene) -> str:
    """An env whose observations are not what its space says."""
    return refused_run(scene, 2, "shape (2,)", dqn(env="tests.drills.envs:WrongShape"))


@drill(21, "oom-shard", pace="fast")
def oom_shard(scene: Scene) -> str:
    """Replay that this machine's memory could not hold."""
    text = dqn().replace("buffer_size: 5000", "buffer_size: 100000000000")
    return refused_run(scene, 4, "buffer_size", text)


@drill(6, "disk-full")
def disk_full(scene: Scene) -> str:
    """The disk that the run writes to is full after some checkpoints."""
    file = scene.write("drill.yaml", dqn(checkpoint_freq=1))
    command = scene.run_with_small_disk(scene.out, "600k", "run", file, "--out", scene.out, "--json")
    command.end_with(1)
    said = command.stderr + json.dumps(command.events)
    check("No space left on device" in said, f"it says nothing of the disk: {said[-300:]}")
    return next(line for line in said.splitlines() if "No space left" in line)[:120]


@drill(35, "tmp-full")
def tmp_full(scene: Scene) -> str:
    """The folder for temporary files, where Ray keeps its own, is full."""
    file, small = scene.write("drill.yaml", dqn(steps=1000)), scene.folder / "small"
    command = scene.run_with_small_disk(small, "100k", "run", file, "--out", scene.out, "--json", TMPDIR=str(small))
    command.end_with(1, 4)
    check(str(small) in command.stderr, f"it does not name the folder: {command.stderr[-300:]}")
    return command.stderr.strip().splitlines()[0][:120]
