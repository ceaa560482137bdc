"""What tests of trackers share."""

from pathlib import Path

import pytest


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let neither the variables nor the files of whoever runs the tests say what wandb does."""
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_MODE", "WANDB_DIR", "WANDB_RUN_GROUP", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
