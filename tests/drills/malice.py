"""Drills on what somebody made who means harm: experiment files and run directories."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

from rlexp.text import MOST_LINES
from tests.drills.attacks import ATTACKS, check_clean, record_changed
from tests.drills.runs import apex, checkpoints_of, dqn, refused, stopped_run, trial_of
from tests.drills.scene import SCRIPT, Scene, check, drill
from tests.lab.checkpoints import Bomb

ATTEMPTS = {
    "apply": "config: {{lr: !!python/object/apply:os.system ['{touch}']}}",
    "new": "config: {{lr: !!python/object/new:os.system ['{touch}']}}",
    "name": "config: {{lr: !!python/name:os.system ''}}",
    "module": "config: {{lr: !!python/module:antigravity ''}}",
    "own tag": "config: {{lr: !evil {{a: 1}}}}",
    "import": "config: {{lr: \"__import__('os').system('{touch}')\"}}",
    "eval": "config: {{lr: {{eval: \"__import__('os').system('{touch}')\"}}}}",
    "classes": 'config: {{lr: {{eval: "().__class__.__base__.__subclasses__()"}}}}',
    "power": 'config: {{lr: {{eval: "9**9**9**9"}}}}',
    "memory": 'config: {{lr: {{eval: "[0] * 999999999999"}}}}',
    "lambda": "config: {{lr: \"lambda spec: __import__('os').system('{touch}')\"}}",
    "sample_from": "config: {{lr: {{sample_from: \"lambda spec: __import__('os').system('{touch}')\"}}}}",
    "uniform": "config: {{lr: {{uniform: [\"__import__('os').system('{touch}')\", 1]}}}}",
    "list": "config: {{model: {{fcnet_hiddens: \"[__import__('os').system('{touch}')]\"}}}}",
    "model": "config: {{model: {{custom_model: os.system}}}}",
    "callbacks": "config: {{callbacks: os.system}}",
    "exploration": "config: {{exploration_config: {{type: os.system, command: '{touch}'}}}}",
    "input": "config: {{input: '{touch} |'}}",
    "output": "config: {{output: {sentinel}}}",
    "env_config": "config: {{env_config: {{size: {{eval: \"__import__('os').system('{touch}')\"}}}}}}",
    "agent": "run: os.system",
    "upwards": "env: ../CartPole-v1",
    "absolute": "env: /bin/sh",
    "module upwards": "env: ../../evil:Env",
    "shell": "env: $(touch {sentinel})",
    "stop": "stop: {{\"__import__('os')\": 200}}",
    "../../outside": "run: DQN",
    "/tmp/outside": "run: DQN",
    "..": "run: DQN",
    "\\e[2J\\u202e": "run: DQN",
}
"""Experiments by name, and a line each that tries something."""
ENVS = {
    "os:system": "{{command: 'touch {sentinel}'}}",
    "subprocess:run": "{{args: 'touch {sentinel}', shell: true}}",
    "builtins:open": "{{file: '{sentinel}', mode: w}}",
    "importlib:import_module": "{{name: antigravity}}",
    "no_such_module:Env": "{{}}",
    "CartPole-v1": "{{entry_point: 'os:system'}}",
}
"""Envs that are none, or are not there, and what they would be called with."""


@drill(61, "evil-yaml")
def evil_yaml(scene: Scene) -> str:
    """Experiment files that try to run code, or to write elsewhere."""
    sentinel = scene.folder / "sentinel"
    text, lines = attempts(sentinel)
    file = scene.write("drill.yaml", text)
    for words in (("check", file), ("convert", file), ("run", file, "--out", scene.out), ("sweep", file)):
        command = scene.start(*words)
        command.end_with(2)
        first = dict(sorted(lines.items(), key=lambda item: item[1])[: MOST_LINES // 2])
        passed = [name for name, line in first.items() if f"error: {file}:{line}:" not in command.stderr]
        check(not passed, f"{words[0]} says nothing of {passed}: {command.stderr[-500:]}")
        check(" more errors; rlexp check --json prints all" in command.stderr, command.stderr[-300:])
        check_clean(command)
    problems = json.loads("".join(scene.run("check", file, "--json").output))["problems"]
    places = [problem["where"] for problem in problems]
    passed = [name for name, line in lines.items() if not any(place.startswith(f"{file}:{line}:") for place in places)]
    check(not passed, f"check --json says nothing of {passed}")
    for name, content in {
        "tag": f"!!python/object/apply:os.system ['touch {sentinel}']\n",
        "raw": "a: \x1b[2J\n",
    }.items():
        refused(scene, 2, f"{name}.yaml:1:", "check", scene.write(f"{name}.yaml", content))
    for env, arguments in ENVS.items():
        file = scene.write("drill.yaml", dqn(env=env, env_config=arguments.format(sentinel=sentinel)))
        refused(scene, 2, env, "run", file, "--out", scene.out)
    check(not sentinel.exists(), "something was run")
    check(not scene.out.exists(), "something was created")
    return f"{len(lines)} attempts, each with its line, in four commands; {len(ENVS)} envs that are none"


POISONED = (
    *("ray", "torch", "numpy", "gymnasium", "yaml", "pydantic", "typer", "click", "rich", "psutil", "lz4", "filelock"),
    *("tensorboard", "tensorboardX", "safetensors", "optuna", "matplotlib", "ale_py", "json", "random", "secrets"),
    *("colorsys", "rlexp"),
)
"""Modules that rlexp, its libraries or Python itself import, or may look for."""


@drill(65, "poisoned-folder")
def poisoned_folder(scene: Scene) -> str:
    """Every command is started in a folder where files have the names of Python's modules."""
    folder, sentinel = scene.folder / "downloads", scene.folder / "sentinel"
    folder.mkdir()
    for name in POISONED:
        (folder / f"{name}.py").write_text(f"open({str(sentinel)!r}, 'a').write({name!r})\n", encoding="utf-8")
    (folder / "drill.yaml").write_text(dqn(steps=400), encoding="utf-8")
    (folder / "workers.yaml").write_text(apex(steps=400, workers=1), encoding="utf-8")
    (folder / "sweep.yaml").write_text(dqn(steps=400, lr="{grid_search: [1e-3]}"), encoding="utf-8")
    run = Path("out") / "drill"
    commands: tuple[tuple[object, ...], ...] = (
        *(("check", "drill.yaml"), ("explain", "lr"), ("schema",), ("convert", "drill.yaml"), ("doctor",)),
        *(("run", name, "--out", "out", "--name", Path(name).stem, "-q") for name in ("drill.yaml", "workers.yaml")),
        ("resume", run, "-o", "stop.timesteps_total=800", "-q"),
        *(("ls", "out"), ("evaluate", run, "--episodes", 1), ("logs", run), ("compare", run)),
        ("sweep", "sweep.yaml", "--out", "out", "-q"),
        ("train", "-f", "drill.yaml", "--out", "again"),
    )
    for words in commands:
        scene.start_in(folder, SCRIPT, *words).end_with(0)
        check(not sentinel.exists(), f"{words} has imported {sentinel.read_text() if sentinel.exists() else ''}")
    return f"{len(commands)} commands beside {len(POISONED)} modules, none of them imported"


def attempts(sentinel: Path) -> tuple[str, dict[str, int]]:
    """Return a file with every attempt, and the line at which each is told."""
    text, lines = "", {}
    for name, attempt in ATTEMPTS.items():
        line = attempt.format(touch=f"touch {sentinel}", sentinel=sentinel)
        key = line.partition(":")[0]
        others = {"run": "run: DQN", "env": "env: CartPole-v1", "stop": "stop: {timesteps_total: 200}"}
        begins = text.count("\n") + 1
        text += f'"{name}":\n' + "".join(f"  {other}\n" for known, other in others.items() if known != key)
        lines[name] = begins if line == "run: DQN" else text.count("\n") + 1
        text += f"  {line}\n"
    return text, lines


@drill(62, "evil-run")
def evil_run(scene: Scene) -> str:
    """A run directory that tries to run code, to keep its reader waiting, or to lead elsewhere."""
    run = stopped_run(scene, dqn())
    for older in checkpoints_of(run)[:-1]:
        shutil.rmtree(older)
    (newest,) = checkpoints_of(run)
    record_changed(run, best_checkpoint=f"{newest.parent.name}/{newest.name}")
    sentinel, outside = scene.folder / "sentinel", scene.folder / "outside"
    shutil.copytree(trial_of(run), outside)
    (outside / "precious").write_text("precious", encoding="utf-8")
    before = contents(outside)
    for name in ("tuner.pkl", f"{trial_of(run).name}/params.pkl"):
        (run / name).write_bytes(pickle.dumps(Bomb(sentinel)))
    (run / "evil.py").write_text(f"open({str(sentinel)!r}, 'w')\n", encoding="utf-8")
    count = 0
    for attack in ATTACKS:
        count += sum(1 for _ in attack(scene, run, outside))
        check(not sentinel.exists(), f"{attack.__name__}: something was run")
        check(contents(outside) == before, f"{attack.__name__}: something was written elsewhere")
    cleaned(scene, outside)
    check(contents(outside) == before, "doctor removed what a link leads to")
    return f"{count} commands; nothing ran, waited, or was written elsewhere"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def cleaned(scene: Scene, outside: Path) -> None:
    """Run ``doctor --clean`` where a link to somewhere else looks like something that a killed command left."""
    (outside / "rlexp.lock").touch()
    (scene.folder / "rlexp-link").symlink_to(outside)
    told = check_clean(scene.run("doctor", "--clean"))
    check("rlexp-link" not in told, told[-300:])
    (outside / "rlexp.lock").unlink()
