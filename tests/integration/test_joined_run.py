"""A run with a real Redis as its board, and actors in processes of their own: ``rlexp run --board``, ``rlexp join``.

``rlexp join`` where only requirements-join.txt is installed: neither Ray nor torch, nor anything else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.credentials import password_keys
from rlexp.board.servers import open_board
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.source import BoardSeats
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from tests.lab.board import SMALL_APEX
from tests.lab.brokers import running_redis

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
PASSWORD = "geheim-4711"
TASK = "task-1"
JOIN = """
import sys
from importlib.abc import MetaPathFinder

class NotInstalled(MetaPathFinder):
    missing = set(sys.argv[1].split())
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
sys.argv = ["rlexp", "join", *sys.argv[2:]]
from rlexp.cli import main
try:
    main()
finally:
    print(sorted({"ray", "torch", "tensorboard", "jinja2"} & sys.modules.keys()))
"""


def listed() -> list[str]:
    lines = (ROOT / "requirements-join.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def needed(names: set[str]) -> set[str]:
    """Return the distributions, and all that these need, leaving out extras."""
    known: set[str] = set()
    while names:
        name = names.pop()
        known.add(name)
        try:
            found = [name_of(line) for line in requires(name) or () if "extra ==" not in line]
        except PackageNotFoundError:  # it is for another system or version of Python
            continue
        names |= set(found) - known
    return known


def missing_modules() -> set[str]:
    """Return the top-level modules of all other distributions that are installed here."""
    known = needed({name_of(line) for line in listed()})
    modules = {
        module
        for module, distributions in packages_distributions().items()
        if not known & {name_of(distribution) for distribution in distributions}
    }
    return modules - {"rlexp"}


def test_list_has_what_the_package_says_of_the_same_libraries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {*project["dependencies"], *project["optional-dependencies"]["redis"]}
    assert set(listed()) <= bounds
    assert {name_of(line) for line in bounds} - {name_of(line) for line in listed()} == {
        *("jinja2", "ray", "rich", "tensorboard", "torch")
    }


def test_actor_joins_a_task_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    missing = missing_modules()
    assert {"ray", "torch"} <= missing
    with running_redis(PASSWORD) as server:
        board = open_board(parse_address(server.url))
        link = BoardLink(board, TASK, "small", "trainer", password_keys(PASSWORD, TASK))
        config = SMALL_APEX | {"board": SMALL_APEX["board"] | {"actors": 1}}
        agent = ApexAgent("CartPole-v1", ApexConfig.model_validate(config), InlineTaskPool(), 1, board=BoardSeats(link))
        url = f"redis://127.0.0.1:{server.port}"
        command = [sys.executable, "-c", JOIN, " ".join(missing), url, "--once"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RLEXP_BOARD_PASSWORD": PASSWORD}
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                while not [task for task in board.tasks() if task.num_taken]:
                    assert process.poll() is None, process.communicate(timeout=TIMEOUT_S)
                    time.sleep(0.01)
                row = agent.train()
                while not row["info"]["num_updates"] and process.poll() is None:
                    row = agent.train()
                agent.stop()
                output, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        board.close()
    assert (process.returncode, output) == (0, "[]\n"), errors
    assert "the task is over" in errors
    assert row["info"]["num_updates"] > 0
    assert row["info"]["board"]["num_refused"] == 0
