"""Heavy libraries are imported where they belong, what is dangerous is called in one file, the image has them all."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source_tree import MODULES, imports, path_of, room_of, trees

LIBRARIES = {
    "ray.tune": {"tuning", "cluster"},
    "ray": {"tuning", "cluster"},
    "torch": {"models", "agents"},
    "gymnasium": {"envs", "models", "rollout", "agents", "board", "callbacks"},
    "typer": {"cli", "commands"},
    "yaml": {"config"},
    "redis": {"board"},
    "cryptography": {"board"},
    "google": {"board"},
    "grpc": {"board"},
    "pika": {"board"},
    "paho": {"board"},
    "lz4": {"replay", "board"},
    "mlflow": {"trackers"},
    "wandb": {"trackers"},
    "onnx": {"agents"},
    "onnxruntime": {"agents"},
    "onnxscript": {"agents"},
}
CLIENT_FILES = {
    "redis": {"board/servers/redis_queue.py"},
    "pika": {"board/servers/amqp.py"},
    "paho": {"board/servers/mqtt.py"},
    "google": {"board/servers/pubsub.py"},
    "grpc": {"board/servers/pubsub.py"},
    "cryptography": {"board/messages/credentials.py"},
    "mlflow": {"trackers/mlflow_client.py"},
    "wandb": {"trackers/wandb_client.py"},
}
PRIVATE_NAMES = re.compile(r"\b(ray(\.\w+)*|torch|tune)\.(_[a-z]\w*)|_fused_adam_|\.air\._internal")
"""Of Ray, Tune and torch, which do not promise to keep them: ``cluster/shortcuts`` looks each up before it is used."""
FILES_WITH_PRIVATE_NAMES = {
    "agents/torch/flat_adam.py",
    "cluster/pool/nodes.py",
    "cluster/quick_start/fork_server_process.py",
    "cluster/quick_start/raylet.py",
    "cluster/shortcuts.py",
}
TEXTS = {path_of(module): path.read_text(encoding="utf-8") for module, path in MODULES.items()}


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_in_their_rooms(library: str) -> None:
    users = [each for each in imports() if f"{each.module}.".startswith(f"{library}.")]
    wrong = [each for each in users if room_of(each.path) not in LIBRARIES[library]]
    assert not wrong, "\n".join(f"{each.where}: {room_of(each.path)} must not import {each.module}" for each in wrong)


@pytest.mark.parametrize("library", CLIENT_FILES)
def test_client_libraries_have_files_of_their_own(library: str) -> None:
    assert {each.path for each in imports() if each.module.split(".")[0] == library} <= CLIENT_FILES[library]


@pytest.mark.parametrize(
    "forbidden", ["pickle.load", "cloudpickle", "weights_only=False", "yaml.load(", "CSafeLoader", "local_mode"]
)
def test_dangerous_calls_are_nowhere(forbidden: str) -> None:
    found = [path for path, text in TEXTS.items() if forbidden in text]
    assert not found, f"{forbidden} in {found}"


@pytest.mark.parametrize(
    ("call", "owner"), [("Popen(", "processes/child.py"), ("signal.signal(", "processes/signals.py")]
)
def test_what_can_leave_something_behind_has_one_owner(call: str, owner: str) -> None:
    assert {path for path, text in TEXTS.items() if call in text} == {owner}


def test_private_names_of_libraries_are_where_they_are_looked_up() -> None:
    assert {path for path, text in TEXTS.items() if PRIVATE_NAMES.search(text)} == FILES_WITH_PRIVATE_NAMES


def test_nothing_is_evaluated() -> None:
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, f"{module}:{node.lineno}"


def test_commands_are_declared_without_what_answers_them() -> None:
    answering = (
        "yaml",
        "numpy",
        "rich",
        "rlexp.config.keys.common",
        "rlexp.cluster",
        "rlexp.tuning",
        "rlexp.user_code",
    )
    code = f"""if True:
        import sys
        from rlexp.cli import COMMANDS, command_of
        for name in COMMANDS:
            command_of(name)
            print(*(f"{{name}}: {{module}}" for module in {answering!r} if module in sys.modules), sep="\\n")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


def test_a_run_begins_without_libraries_that_it_needs_later() -> None:
    later = {"torch", "ray", "tensorboard", "google.protobuf", "asyncio", "rich"}
    code = f"import sys, rlexp.tuning.run; print(*sorted({later!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()


def of(instruction: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")]


def copied_from_repository() -> set[str]:
    return {name for line in of("COPY") if not line.startswith("--from") for name in line.split()[:-1]}


def test_everything_that_is_copied_exists_and_is_sent() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    assert copied_from_repository() == sent
    assert all((ROOT / name).exists() for name in sent)


def test_sigterm_reaches_rlexp_and_not_as_root() -> None:
    assert json.loads(of("ENTRYPOINT")[0]) == ["tini", "--", "rlexp"]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert LINES.index("USER rlexp") < next(at for at, line in enumerate(LINES) if line.startswith("ENTRYPOINT"))


def test_python_is_one_that_the_package_allows() -> None:
    lowest = re.search(r'requires-python = ">=(3\.\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert lowest is not None
    assert {line.split()[0] for line in of("FROM")} == {f"python:{lowest[1]}-slim"}
