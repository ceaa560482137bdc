"""What tests of trackers share."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlexp.processes.family import find_leftovers


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder for temporary files is left; the libraries make some that they do not remove if they are killed."""
    with suppress(ImportError):
        import wandb  # noqa: F401  # its import makes folders that it removes when this process ends
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    for leftover in find_leftovers():  # of a command that was killed
        leftover.remove()
    assert not [*folder.iterdir()]


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let neither the variables nor the files of whoever runs the tests say what wandb does."""
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_MODE", "WANDB_DIR", "WANDB_RUN_GROUP", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
