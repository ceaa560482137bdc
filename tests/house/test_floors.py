"""The house holds: a room imports only what lies below it, and heavy libraries only where they belong."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import rlexp

PACKAGE = Path(__file__).parents[2] / "rlexp"

FLOORS = {
    "__init__": 14,
    "api": 13,
    "cli": 13,
    "commands": 12,
    "tuning": 11,
    "terminal": 10,
    "board": 9,
    "agents": 8,
    "optimizers": 7,
    "compare": 7,
    "trackers": 7,
    "rollout": 6,
    "search": 6,
    "runs": 5,
    "replay": 5,
    "envs": 4,
    "models": 4,
    "policy": 4,
    "cluster": 3,
    "user_code": 2,
    "processes": 1,
    "config": 1,
    "metrics": 0,
    "states": 0,
    "sample_batch": 0,
    "schedules": 0,
    "files": 0,
    "text": 0,
    "errors": 0,
    "callbacks": 0,
}
FLOORS_OF_CONFIG = {
    "load": 10,
    "convert": 9,
    "plan": 9,
    "parsed_experiment": 8,
    "assembly": 7,
    "sweep": 7,
    "variants": 6,
    "validation": 5,
    "reference": 4,
    "rllib": 3,
    "space": 2,
    "translation": 1,
    "command_line": 1,
    "keys": 0,
    "yaml": -1,
}
"""The same within ``config``: a file's way from text to trials goes up."""
FLOORS_OF_BOARD = {"trainer": 3, "actor": 3, "client": 4, "task": 2, "demands": 1, "servers": 1, "messages": 0}
"""And within ``board``: a client plays as an actor does and reads what a trainer writes."""
GROUND = {"states", "sample_batch", "schedules", "text", "errors", "files"}
"""What every room may use, also its neighbours on the ground floor."""

# These rooms do not see each other, though their floors would let them; they meet through protocols.
STRANGERS = [{"rollout", "replay"}, {"rollout", "runs"}, {"rollout", "search"}]

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
    "cryptography": {"board/messages/tokens.py"},
    "mlflow": {"trackers/mlflow_client.py"},
    "wandb": {"trackers/wandb_client.py"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports() -> Iterator[tuple[Path, int, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path, node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: relative import"
                assert node.module is not None
                yield path, node.lineno, node.module


IMPORTS = list(imports())


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= FLOORS.keys(), f"rooms without a floor: {rooms - FLOORS.keys()}"


def test_no_room_hides_a_public_name() -> None:
    assert not {room_of(path) for path in PACKAGE.rglob("*.py")} & set(rlexp.__all__)


def test_imports_go_down() -> None:
    wrong = []
    for path, line, module in IMPORTS:
        if not module.startswith("rlexp."):
            continue
        here, there = room_of(path), module.split(".")[1]
        if here == "__main__":
            continue
        allowed = here == there or FLOORS[there] < FLOORS[here] or there in GROUND
        if not allowed or {here, there} in STRANGERS:
            wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {here} must not import {there}")
    assert not wrong, "\n".join(wrong)


def test_imports_within_config_go_down() -> None:
    wrong = []
    for path, line, module in IMPORTS:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "config" or not module.startswith("rlexp.config.") or parts[1] == "__init__":
            continue
        here, there = parts[1], module.split(".")[2]
        if here != there and FLOORS_OF_CONFIG[there] >= FLOORS_OF_CONFIG[here]:
            wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {here} must not import {there}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_in_their_rooms(library: str) -> None:
    rooms = LIBRARIES[library]
    wrong = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {room_of(path)} must not import {module}"
        for path, line, module in IMPORTS
        if (module == library or module.startswith(library + ".")) and room_of(path) not in rooms
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_within_board_go_down() -> None:
    wrong = []
    for path, line, module in IMPORTS:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "board" or not module.startswith("rlexp.board.") or len(parts) < 3:
            continue
        here, there = parts[1], module.split(".")[2]
        if here != there and FLOORS_OF_BOARD[there] >= FLOORS_OF_BOARD[here]:
            wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {here} must not import {there}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", CLIENT_FILES)
def test_client_libraries_have_files_of_their_own(library: str) -> None:
    users = {str(path.relative_to(PACKAGE)) for path, _, module in IMPORTS if module.split(".")[0] == library}
    assert users <= CLIENT_FILES[library]


@pytest.mark.parametrize(
    "forbidden", ["pickle.load", "cloudpickle", "weights_only=False", "yaml.load(", "CSafeLoader", "local_mode"]
)
def test_dangerous_calls_are_nowhere(forbidden: str) -> None:
    found = [str(path) for path in PACKAGE.rglob("*.py") if forbidden in path.read_text(encoding="utf-8")]
    assert not found, f"{forbidden} in {found}"


@pytest.mark.parametrize(
    ("call", "owner"), [("Popen(", "processes/child.py"), ("signal.signal(", "processes/signals.py")]
)
def test_what_can_leave_something_behind_has_one_owner(call: str, owner: str) -> None:
    callers = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if call in path.read_text("utf-8")}
    assert callers == {owner}


def test_nothing_is_evaluated() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, f"{path}:{node.lineno}"


MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
LONGEST_FILE = 400
SHORTEST_FILE = 80
"""Of a file that only one other imports; a shorter one is a part of that."""


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules of ours that statements import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in whole)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def at_the_top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, without those for type checkers only."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Try | ast.With):
            if not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
                yield from at_the_top(statement.body)
        else:
            yield statement


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    below = {module: set(imported(at_the_top(tree.body))) - {module} for module, tree in TREES.items()}
    while leaves := {module for module, needs in below.items() if not needs}:
        below = {module: needs - leaves for module, needs in below.items() if needs}
    assert not below


def test_files_are_chapters() -> None:
    importers: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, tree in TREES.items():
        for name in imported(ast.walk(tree)):
            importers[name].add(module)
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert not [module for module, number in lines.items() if number > LONGEST_FILE]
    assert not [
        module
        for module, number in lines.items()
        if number < SHORTEST_FILE and len(importers[module]) == 1 and MODULES[module].name != "__init__.py"
    ]


def test_a_class_name_means_one_class() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}
