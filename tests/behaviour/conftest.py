"""What tests of keys share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.trials import assigned, rows_of


@pytest.fixture
def threads() -> Iterator[None]:
    """Give torch its threads back after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[dict[str, Any]], Path]]:
    """Train the trial of an experiment, below a folder of the test; return its rows and its own folder."""

    def to_the_end(
        config: dict[str, Any] | None = None, below: str = ".", **keys: Any
    ) -> tuple[list[dict[str, Any]], Path]:
        (tmp_path / below).mkdir(exist_ok=True)
        with assigned(tmp_path / below, config, **keys) as assignment:
            return rows_of(assignment, monkeypatch), assignment.directory

    return to_the_end
