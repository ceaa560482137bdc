"""The Dockerfile, where there is no Docker: what it copies is there and sent, and how a container is stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path

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
