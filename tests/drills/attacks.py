"""What a run directory can try on whoever reads it or goes on with it; each attack yields what every command said."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.drills.runs import checkpoints_of, refused, trial_of
from tests.drills.scene import Command, Scene, check
from tests.lab.checkpoints import forge

NOBODY = 65534
"""A user that is not root."""
ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e"
"""Changes a terminal's title, clears it, colours it, and turns round what follows."""
MARKUP = "<script>alert(1)</script>"
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
HUGE = "9" * 4000


def check_clean(command: Command) -> str:
    """Check that a command has printed no traceback, no warning of Python's and nothing that a terminal obeys."""
    said = "\n".join([command.stderr, *command.output])
    check("Traceback" not in said and "Warning" not in said, said[-300:])
    obeyed = {character for character in said if not character.isprintable() and character not in "\n\t"}
    check(not obeyed, f"it printed {obeyed}: {said[-300:]!r}")
    return said


def copied(scene: Scene, run: Path, change: Callable[[Path], object]) -> Path:
    """Return a copy of a run with a change."""
    copy = scene.folder / "handed_over"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy, symlinks=True)
    change(copy)
    return copy


def record_changed(run: Path, **changes: object) -> None:
    """Change ``run.json``, and what it says of the trial where the trial has such a key."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    trial = record["trials"][0]
    for key, value in changes.items():
        (trial if key in trial else record)[key] = value
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")


def manifest_changed(run: Path, **metadata: object) -> Path:
    """Change what the checkpoint says of its training; return it."""
    (checkpoint,) = run.glob("*/checkpoint_*")
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    forge(checkpoint, metadata={**manifest["metadata"], **metadata})
    return checkpoint


def names_own(run: Path, module: str | None, env: str | None) -> None:
    """Let a run name a module that lies in it, by the name that it has from the folder around it."""
    imports = [module] if module else []
    record_changed(run, imports=imports)
    (checkpoint,) = run.glob("*/checkpoint_*")
    experiment = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["metadata"]["experiment"]
    manifest_changed(run, imports=imports, experiment={**experiment, **({"env": env} if env else {})})
    if env:
        text = (run / "resolved.yaml").read_text(encoding="utf-8")
        (run / "resolved.yaml").write_text(text.replace("CartPole-v1", env), encoding="utf-8")


def modules(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """The run names a module beside it, and somebody else can write there."""

    def names_module(copy: Path) -> None:
        record_changed(copy, imports=["evil"])
        manifest_changed(copy, imports=["evil"])

    def for_all(copy: Path) -> None:
        names_module(copy)
        for path in (copy, *copy.glob("*/checkpoint_*")):
            path.chmod(0o777)

    def of_nobody(copy: Path) -> None:
        names_module(copy)
        for path in (copy, *copy.rglob("*")):
            os.chown(path, NOBODY, NOBODY)

    said = {for_all: "may be written by every user"}
    if os.geteuid() == 0:
        said[of_nobody] = "belongs to another user"
    for change, reason in said.items():
        copy = copied(scene, run, change)
        for command in at_once(scene, ("resume", copy), PYTHONPATH=str(copy)):
            yield check_refused(command, 3, reason)
        for command in at_once(scene, ("evaluate", copy), PYTHONPATH=str(copy)):
            yield check_refused(command, 3, "have not trained with")


def own_modules(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """The run names a module that lies in it, which is found from the folder around it."""
    for name, env in (("handed_over.evil", None), (None, "handed_over.evil:Env")):
        copy = copied(scene, run, lambda copy: names_own(copy, name, env))  # noqa: B023
        for command in at_once(scene, ("resume", copy), ("evaluate", copy), PYTHONPATH=str(copy.parent)):
            yield check_refused(command, 3, "have not trained with")


def at_once(scene: Scene, *commands: tuple[object, ...], **environment: str) -> list[Command]:
    """Run commands at the same time; return them when all have ended."""
    started = [scene.start(*words, **environment) for words in commands]
    for command in started:
        command.end()
    return started


def check_refused(command: Command, code: int, reason: str) -> str:
    """Check that a command has ended with a code and a reason; return what it said."""
    command.end_with(code)
    said = check_clean(command)
    check(reason in said, f"{reason!r} is not in {command.stderr[-300:]!r}")
    return said


def elsewhere(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """Names of trials, checkpoints and their files lead out of the run."""
    directory = f"../{outside.name}"
    best = f"{directory}/{checkpoints_of(run)[-1].name}"
    copy = copied(scene, run, lambda copy: record_changed(copy, directory=directory, best_checkpoint=best))
    for command in at_once(scene, ("evaluate", copy), ("resume", copy)):
        yield check_refused(command, 3, "points elsewhere")
    copy = copied(scene, run, lambda copy: None)
    (checkpoint,) = copy.glob("*/checkpoint_*")
    files = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["files"]
    forge(checkpoint, files={**files, "../../../outside/precious": {"bytes": 8, "sha256": ""}})
    yield refused(scene, 3, "is not a file of a checkpoint", "evaluate", copy)


def links(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """Links stand where a resumed run writes."""
    trial = trial_of(run).name
    targets = {
        f"{trial}/result.json": outside / "precious",
        trial: outside,
    }
    for name, target in targets.items():
        copy = copied(scene, run, lambda copy: replaced(copy / name).symlink_to(target))  # noqa: B023
        yield refused(scene, 3, "is a link", "resume", copy)


def replaced(path: Path) -> Path:
    """Remove what is at a path; return the path."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def pipes(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """Pipes that nobody writes to, and devices that never end, stand in the place of files."""
    trial = trial_of(run)
    (events,) = trial.glob("events.out.*")
    names = ["resolved.yaml", "search.jsonl", "sweep.json"]
    names += [f"{trial.name}/{name}" for name in ("params.json", "result.json", events.name)]

    def with_pipes(copy: Path) -> None:
        for name in names:
            os.mkfifo(replaced(copy / name))

    copy = copied(scene, run, with_pipes)
    words = ("ls", "logs", "compare", "resume")
    for command, code in zip(at_once(scene, *((word, copy) for word in words)), (0, 2, 2, 3), strict=True):
        yield check_refused(command, code, "")
    manifest = checkpoints_of(run)[-1].relative_to(run) / "manifest.json"
    copy = copied(scene, run, lambda copy: replaced(copy / manifest).symlink_to("/dev/zero"))
    yield refused(scene, 3, "is damaged", "evaluate", copy)
    for replace in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        copy = copied(scene, run, lambda copy: replace(replaced(copy / "run.json")))  # noqa: B023
        said = "".join(scene.run("ls", copy).output)
        check("DAMAGED" in said, "ls takes it for good")
        yield said


def nonsense(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """What would be objects, is nested beyond all bounds, or is not what should stand there."""
    touch = f"e: !!python/object/apply:os.system ['touch {scene.folder / 'sentinel'}']\n"
    copy = copied(scene, run, lambda copy: (copy / "resolved.yaml").write_text(touch, encoding="utf-8"))
    yield refused(scene, 2, "resolved.yaml:1:4", "resume", copy)
    yield check_refused(scene.run("compare", copy), 0, "")
    names = ["run.json", *(f"{trial_of(run).name}/{name}" for name in ("params.json", "result.json"))]
    copy = copied(scene, run, lambda copy: [(copy / name).write_text(DEEP + "\n") for name in names])
    words = ("ls", "compare", "evaluate", "resume")
    for command, code in zip(at_once(scene, *((word, copy) for word in words)), (0, 2, 3, 3), strict=True):
        yield check_refused(command, code, "")
    for line in (DEEP, '{"format": 1, "axes": ["\\u001b[2J"], "experiment": {}, "allow_failures": 0}'):
        copy = copied(scene, run, lambda copy: (copy / "search.jsonl").write_text(line + "\n"))  # noqa: B023
        yield check_refused(scene.run("resume", copy), 3, "")
    training = {"run": ESCAPES, "config": {}}
    copy = copied(scene, run, lambda copy: manifest_changed(copy, experiment=training))
    yield check_refused(scene.run("evaluate", copy), 3, "which is not installed here")


def shown(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """Names, notes and numbers that a terminal or a browser would obey, or that no column can hold."""
    name = f"00000-{ESCAPES}{MARKUP.replace('/', '')}"

    def adorned(copy: Path) -> None:
        trial = trial_of(copy).rename(copy / name)
        error = {"summary": ESCAPES + MARKUP, "traceback": None}
        record_changed(copy, name=name, directory=name, error=error, varied={ESCAPES: MARKUP}, host=MARKUP)
        parameters = {"run": ESCAPES, "env": ESCAPES + MARKUP, "lr": MARKUP, ESCAPES: MARKUP}
        (trial / "params.json").write_text(json.dumps(parameters), encoding="utf-8")
        rows = (trial / "result.json").read_text(encoding="utf-8").splitlines()
        last = {**json.loads(rows[-1]), "episode_reward_mean": -1e308, "timesteps_total": 1e308}
        strange = [json.dumps(last), '{"timesteps_total": NaN}', f'{{"timesteps_total": {HUGE}}}', ESCAPES]
        (trial / "result.json").write_text("\n".join([*rows, *strange]) + "\n", encoding="utf-8")

    copy = copied(scene, run, adorned)
    report = scene.folder / "report.html"
    commands = (
        ("ls", copy),
        ("ls", scene.folder),
        ("logs", copy),
        ("compare", copy, "--html", report),
        ("resume", copy),
    )
    for command, words in zip(at_once(scene, *commands), commands, strict=True):
        yield check_refused(command, 3 if words[0] == "resume" else 0, "")
    page = report.read_text(encoding="utf-8")
    check("<script" not in page and "&lt;script" in page, "the report has a script")
    numbers = copied(scene, run, lambda copy: record_changed(copy, timesteps_total=10**300, iterations=float("nan")))
    yield check_clean(scene.run("ls", numbers))


def tampered(scene: Scene, run: Path, outside: Path) -> Iterator[str]:
    """Manifests and states have giant numbers, keys that are given twice, deep nesting, or are links."""
    (original,) = run.glob("*/checkpoint_*")
    manifest, state = ((original / name).read_text(encoding="utf-8") for name in ("manifest.json", "state.json"))
    values = json.loads(state)
    states = {
        "number": json.dumps({**values, "num_steps_sampled": 10**300}),
        "digits": json.dumps({**values, "iteration": 0}).replace('"iteration": 0', f'"iteration": {HUGE * 2}'),
        "twice": state.replace("{", '{"iteration": 1, ', 1),
        "deep": json.dumps({**values, "source": json.loads("[" * 900 + "]" * 900)}),
    }
    for text in states.values():
        copy = copied(scene, run, lambda copy: state_changed(copy, text))  # noqa: B023
        yield check_refused(scene.run("resume", copy), 3, "checkpoint_")
    for text in (manifest.replace("{", '{"sequence": 1, ', 1), manifest.replace('"bytes": ', f'"bytes": {HUGE}', 1)):
        copy = copied(scene, run, lambda copy: (checkpoint_in(copy) / "manifest.json").write_text(text))  # noqa: B023
        yield check_refused(scene.run("resume", copy), 3, "is damaged")
    for name in ("manifest.json", "state.json"):
        copy = copied(scene, run, lambda copy: replaced(checkpoint_in(copy) / name).symlink_to(original / name))  # noqa: B023
        yield check_refused(scene.run("resume", copy), 3, "is a link")
    rows: tuple[object, ...] = ({"training_iteration": 10**300}, {"timesteps_total": -1}, [])
    for metrics in rows:
        copy = copied(scene, run, lambda copy: manifest_changed(copy, metrics=metrics))  # noqa: B023
        yield check_refused(scene.run("resume", copy), 3, "not a row of results")


def checkpoint_in(run: Path) -> Path:
    """Return the only checkpoint of a run."""
    (checkpoint,) = run.glob("*/checkpoint_*")
    return checkpoint


def state_changed(run: Path, text: str) -> None:
    """Replace the state in a checkpoint, and seal the checkpoint again."""
    checkpoint, content = checkpoint_in(run), text.encode()
    (checkpoint / "state.json").write_bytes(content)
    files = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["files"]
    sealed = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(checkpoint, files={**files, "state.json": sealed})


ATTACKS = (modules, own_modules, elsewhere, links, pipes, nonsense, tampered, shown)
