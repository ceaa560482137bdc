"""A trial that takes over another's checkpoint goes on from it, whatever it had itself."""

from pathlib import Path

import numpy as np
import pytest

from rlexp.checkpoint import (
    checkpoint_directory,
    list_checkpoints,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from rlexp.errors import CheckpointError
from rlexp.runs.exploit import adopt_checkpoint


def written(trial: Path, *iterations: int) -> Path:
    trial.mkdir(exist_ok=True)
    for iteration in iterations:
        weights = {"weights": {"w": np.full(3, iteration, np.float32)}}
        path = write_checkpoint(checkpoint_directory(trial, iteration), weights, {"by": trial.name}, {})
    return path


def by(path: Path | None) -> str:
    assert path is not None
    return str(read_checkpoint(path).state["by"])


@pytest.mark.parametrize("own", [(2,), (5,), (3, 8, 9)])
def test_the_copy_is_the_newest(own: tuple[int, ...], tmp_path: Path) -> None:
    donors = written(tmp_path / "donor", 5)
    written(tmp_path / "taker", *own)
    copy = adopt_checkpoint(donors, tmp_path / "taker")
    assert newest_checkpoint(tmp_path / "taker") == copy
    assert by(copy) == "donor"
    assert (read_checkpoint(copy).arrays["weights"]["w"] == 5).all()
    assert [path.name for path in list_checkpoints(tmp_path / "taker")][1:] == [
        f"checkpoint_{iteration:06d}" for iteration in sorted(own, reverse=True) if iteration < 5
    ]
    assert by(donors) == "donor"


def test_half_a_checkpoint_is_not_taken_over(tmp_path: Path) -> None:
    donors = written(tmp_path / "donor", 5)
    (donors / "state.json").unlink()
    own = written(tmp_path / "taker", 8)
    with pytest.raises(CheckpointError):
        adopt_checkpoint(donors, tmp_path / "taker")
    assert newest_checkpoint(tmp_path / "taker") == own
    assert [path.name for path in (tmp_path / "taker").iterdir()] == [own.name]
