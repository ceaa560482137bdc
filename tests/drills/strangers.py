"""The drill on a folder that a stranger has sent: runs, and whatever may lie beside them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import py_compile
import re
import select
import shutil
import signal
import socket
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import psutil

from tests.drills.malice import POISONED
from tests.drills.runs import checkpoints_of, dqn, stopped_run, trial_of
from tests.drills.scene import SCRIPT, Command, Scene, check, drill
from tests.lab.checkpoints import forge

EVIL: Final = "evil_part"
OWN_SCRIPT: Final = "deploy_of_mine"
HOOKS: Final = ("sitecustomize", "usercustomize", "conftest", "setup", "__main__", "__init__", EVIL, "evil_backend")
REFUSED: Final = 3
AT_ONCE: Final = 4
STRACE: Final = ("-D", "-f", "--seccomp-bpf", "-qq", "-e", "trace=execve,connect", "-e", "signal=none")
ELSEWHERE: Final = "198.51.100.1"
"""An address for documentation (RFC 5737)."""
ASKED_BY_RAY: Final = 'sin_port=htons(53), sin_addr=inet_addr("8.8.8.8")'
"""Ray connects a UDP socket there, and sends nothing, to learn the address of its own machine."""
API: Final = """
import sys, rlexp
from rlexp.errors import RlexpError
runs = sys.argv[1:]
for run in runs:
    for call in (rlexp.load_policy, rlexp.results, rlexp.resume)[: 3 if run in runs[-4:] else 2]:
        try:
            call(run)
        except RlexpError as error:
            print("refused", getattr(call, "__name__", call), run, flush=True)
"""
"""Calls what reads a run on each run that is named; of resume, which starts a process each, on the last four."""


def extras_that_are_missing() -> set[str]:
    """Return names of modules that installed packages say they can use, and that are not installed."""
    wanted = {
        re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        for package in importlib.metadata.distributions()
        for requirement in package.requires or ()
    }
    modules = {name.lower().replace("-", "_").replace(".", "_") for name in wanted}
    return {name for name in modules - set(importlib.metadata.packages_distributions()) if name.isidentifier()}


def poison(folder: Path, sentinel: Path) -> int:
    """Put modules of every kind, and files that programs read when they start, into a folder; return how many."""
    folder.mkdir(exist_ok=True)
    source = f"open({str(sentinel)!r}, 'a').write(__file__ + '\\n')\n"
    names = sorted({*POISONED, *HOOKS, *extras_that_are_missing()})
    for name in names:
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    (folder / "evil_package").mkdir(exist_ok=True)
    (folder / "evil_package" / "__init__.py").write_text(source, encoding="utf-8")
    py_compile.compile(str(folder / f"{EVIL}.py"), cfile=str(folder / "evil_bytecode.pyc"))
    with zipfile.ZipFile(folder / "modules.zip", "w") as archive:
        for name in names:
            archive.writestr(f"{name}.py", source)
    native = next(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob(f"*{EXTENSION_SUFFIXES[0]}"))
    shutil.copy(native, folder / f"evil_native{EXTENSION_SUFFIXES[0]}")
    (folder / "evil.pth").write_text(f"import os; open({str(sentinel)!r}, 'a').write('pth')\n", encoding="utf-8")
    (folder / "matplotlibrc").write_text("backend: module://evil_backend\n", encoding="utf-8")
    (folder / ".pythonrc").write_text(source, encoding="utf-8")
    hostile_repository(folder, sentinel)
    return len(names)


def hostile_repository(folder: Path, sentinel: Path) -> None:
    """Make a folder a repository whose configuration names programs."""
    program = folder / "program.sh"
    program.write_text(f"#!/bin/sh\necho $0 >> {sentinel}\ncat\n", encoding="utf-8")
    program.chmod(0o755)
    git = folder / ".git"
    (git / "refs").mkdir(parents=True, exist_ok=True)
    (git / "objects").mkdir(exist_ok=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    core = f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\thooksPath = {folder}\n"
    keys = f'{core}[filter "e"]\n\tclean = {program}\n'
    (git / "config").write_text(keys, encoding="utf-8")
    (folder / ".gitattributes").write_text("* filter=e diff=e\n", encoding="utf-8")


def named_code(run: Path, imports: list[str], env: str, folders: list[Path]) -> None:
    """Let run.json, the resolved file and the manifests of a run name code, and the folders to look for it."""
    places = [str(folder) for folder in folders]
    record = json.loads((run / "run.json").read_text(encoding="utf-8")) | {"imports": imports, "module_folders": places}
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    resolved = run / "resolved.yaml"
    resolved.write_text(resolved.read_text(encoding="utf-8").replace("CartPole-v1", env), encoding="utf-8")
    for checkpoint in checkpoints_of(run):
        metadata = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["metadata"]
        metadata |= {"imports": imports, "module_folders": places}
        metadata["experiment"]["env"] = env
        forge(checkpoint, metadata=metadata)


def record_changed(run: Path, **changes: object) -> None:
    """Change ``run.json``, and what it says of the trial where the trial has such a key."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    trial = record["trials"][0]
    for key, value in changes.items():
        (trial if key in trial else record)[key] = value
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")


def variants(archive: Path, run: Path, port: int) -> Iterator[tuple[str, Path]]:
    """Yield runs that name code of the archive's, or of the user's own, in every way, and what is named."""
    folders = [archive / "run", archive, archive / "run" / "modules.zip", archive / "modules.zip"]
    for number, (imports, env) in enumerate(
        (
            ([EVIL], "CartPole-v1"),
            (["evil_package"], "CartPole-v1"),
            (["evil_bytecode"], "CartPole-v1"),
            (["evil_native"], "CartPole-v1"),
            ([OWN_SCRIPT], "CartPole-v1"),
            ([], f"{EVIL}:Env"),
            ([], f"{OWN_SCRIPT}:Env"),
        )
    ):
        made = archive / f"named-{number}"
        shutil.copytree(run, made)
        named_code(made, imports, env, [*folders, made])
        yield (imports or [env])[0], made
    linked, elsewhere = archive / "linked", archive / "elsewhere"
    shutil.copytree(archive / "named-0", linked)
    shutil.move(trial_of(linked), elsewhere)
    trial_of(linked).symlink_to(elsewhere)
    yield "a linked trial", linked
    bare = archive / "bare"
    shutil.copytree(archive / "named-0", bare)
    trial = trial_of(bare)
    (bare / "run.json").unlink()
    yield "no run.json", next(path for path in trial.iterdir() if path.name.startswith("checkpoint_"))
    stored = archive / "stored"
    shutil.copytree(run, stored)
    for checkpoint in checkpoints_of(stored):
        shutil.rmtree(checkpoint)
    best = f"{trial_of(stored).name}/checkpoint_000001"
    url = f"s3://bucket/folder?endpoint_override=127.0.0.1:{port}&scheme=http"
    record_changed(stored, storage=url, best_checkpoint=best, best_checkpoint_reward=1.0)
    resolved = stored / "resolved.yaml"
    text = re.sub(r"(?m)^(\s+)storage:.*$", rf"\1storage: '{url}'", resolved.read_text(encoding="utf-8"))
    resolved.write_text(text, encoding="utf-8")
    yield "a storage", stored


@drill(125, "stranger")
def stranger(scene: Scene) -> str:
    """Each command and function of the API reads runs of a folder full of traps, with an audit hook in each process."""
    run = stopped_run(scene, dqn())
    archive, mine = scene.folder / "archive", scene.folder / "mine"
    archive.mkdir()
    shutil.move(run, archive / "run")
    sentinel = scene.folder / "sentinel"
    mine.mkdir()
    (mine / f"{OWN_SCRIPT}.py").write_text(f"open({str(sentinel)!r}, 'a').write('own')\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = list(variants(archive, archive / "run", listener.getsockname()[1]))
        for folder in (archive, archive / "run", archive / "beside"):
            traps = poison(folder, sentinel)
        log = scene.folder / "audit.log"
        environment = audited(scene, archive, log)
        count = plain_commands(scene, archive, environment)
        count += refusing_commands(scene, dict(named), mine, environment)
        asked, _, _ = select.select([listener], [], [], 0)
        check(not asked, "a storage of a stranger's was asked")
    check(not sentinel.exists(), f"executed: {sentinel.read_text() if sentinel.exists() else ''}")
    told = log.read_text(encoding="utf-8") if log.exists() else ""
    check(not told, f"{len(told.splitlines())} events: {told[:1500]}")
    calls = strange_calls(environment)
    check(not calls, f"{len(calls)} system calls: {calls[:5]}")
    check_hook_works(scene, archive, environment, log)
    watched = "audit hook and strace" if shutil.which("strace") else "audit hook, no strace"
    done = f"{count} commands and functions beside {3 * traps} modules"
    return f"{done}, {len(named)} runs that name code or a storage; {watched}"


def audited(scene: Scene, archive: Path, log: Path) -> dict[str, str]:
    """Return the environment of commands that are watched."""
    private = scene.folder / "hook"
    private.mkdir()
    shutil.copy(Path(__file__).with_name("audit_hook.py"), private / "sitecustomize.py")
    hosts = {address.address.split("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    writable = [str(scene.folder.resolve()), "/dev", "/proc"]
    return {
        "RLEXP_AUDIT_LOG": str(log),
        "RLEXP_AUDIT_HOSTILE": str(archive.resolve()),
        "RLEXP_AUDIT_WRITABLE": os.pathsep.join(writable),
        "RLEXP_AUDIT_HOSTS": ",".join({*hosts, "localhost"}),
        "HOME": str(scene.folder / "home"),
        "XDG_STATE_HOME": str(scene.folder / "home" / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "PYTHONPATH": str(private),
    }


def plain_commands(scene: Scene, archive: Path, environment: dict[str, str]) -> int:
    """Run every command on a run that names nothing, in the archive; each must do its work."""
    run, out = archive / "run", scene.folder / "reports"
    out.mkdir()
    commands: tuple[tuple[object, ...], ...] = (
        ("ls", archive),
        ("ls", run, "--json"),
        ("logs", run),
        ("compare", run, "--html", out / "report.html"),
        ("evaluate", run, "--episodes", 1),
        ("export", run, "--onnx", out / "policy.onnx"),
        ("doctor",),
        ("resume", run, "-q", "-o", "stop.timesteps_total=1"),
    )
    for words in commands:
        command = started(scene, archive, environment, SCRIPT, *words)
        command.end()
        missing = words[0] == "export" and "not installed" in command.stderr
        is_linked = words[0] == "resume"  # its folder has programs and links of git now: either is a good end
        check(missing or is_linked or command.process.returncode == 0, f"{words}: {command.stderr[-500:]}")
    server = started(scene, archive, environment, SCRIPT, "tensorboard", run, "--port", 0)
    check(server._lines.get(timeout=60) is not None, f"tensorboard: {server.stderr[-300:]}")
    server.process.send_signal(signal.SIGINT)
    server.end()
    return len(commands) + 1


def refusing_commands(scene: Scene, named: dict[str, Path], mine: Path, environment: dict[str, str]) -> int:
    """Run what plays or trains on runs that name code; each refuses, and the API's functions do."""
    commands: list[tuple[object, ...]] = [("evaluate", path) for path in named.values()]
    for what in (EVIL, f"{EVIL}:Env", "a storage"):
        commands += [("export", named[what], "--onnx", mine / "policy.onnx"), ("resume", named[what], "-q")]
    for first in range(0, len(commands), AT_ONCE):
        some = commands[first : first + AT_ONCE]
        for words, command in [(words, started(scene, mine, environment, SCRIPT, *words)) for words in some]:
            code = command.end()
            missing = words[0] == "export" and "not installed" in command.stderr
            check(missing or code == REFUSED, f"{words}: exit {code}: {command.stderr[-500:]}")
    done = started(scene, mine, environment, sys.executable, "-c", API, *named.values())
    done.end_with(0)
    passed = [what for what, path in named.items() if f"refused load_policy {path}\n" not in done.output]
    check(not passed, f"load_policy has loaded {passed}: {done.output}")
    return len(commands) + 2 * len(named) + 4


def check_hook_works(scene: Scene, archive: Path, environment: dict[str, str], log: Path) -> None:
    """Check that the hook tells of what it is there for: else the drill could not fail."""
    code = f"import sys; sys.path.append({str(archive)!r}); import evil_part, evil_native"
    done = started(scene, scene.folder, environment, sys.executable, "-c", code)
    done.end()
    told = log.read_text(encoding="utf-8") if log.exists() else ""
    check("exec " in told and "import " in told, f"the hook told {told!r}")
    if shutil.which("strace"):
        code = f"import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('{ELSEWHERE}', 9))"
        started(scene, scene.folder, environment, sys.executable, "-c", code).end()
        started(scene, scene.folder, environment, archive / "program.sh").end()
        calls = strange_calls(environment)
        check(len(calls) == 2, f"strace told {calls}")


def started(scene: Scene, folder: Path, environment: dict[str, str], *words: object) -> Command:
    """Start a program in a folder; strace watches what no hook of Python sees: programs, and libraries that connect."""
    if shutil.which("strace"):
        words = ("strace", *STRACE, "-o", f"{environment['RLEXP_AUDIT_LOG']}.{uuid.uuid4().hex}.strace", *words)
    return scene.start_in(folder, *words, **environment)


def strange_calls(environment: dict[str, str]) -> list[str]:
    """Return the lines of strace that start a program of the archive's, or connect to another machine."""
    log, archive = Path(environment["RLEXP_AUDIT_LOG"]), Path(environment["RLEXP_AUDIT_HOSTILE"])
    hosts = environment["RLEXP_AUDIT_HOSTS"].split(",")
    strange = []
    for path in log.parent.glob(f"{log.name}.*.strace"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            program = re.search(r'execve\("([^"]*)"', line)
            host = re.search(r'inet_\w+\((?:AF_INET6, )?"([^"]*)"', line)
            is_hostile = program and (archive in Path(program[1]).parents or not Path(program[1]).is_absolute())
            is_away = host and host[1].removeprefix("::ffff:") not in hosts and ASKED_BY_RAY not in line
            if is_hostile or is_away:
                strange.append(line)
    return strange
