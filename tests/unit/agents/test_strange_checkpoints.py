"""A checkpoint that somebody else made is played, but no module is imported because it says so."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import load_policy
from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint
from rlexp.errors import CheckpointError, ResumeError
from rlexp.runs.checkpoint_contents import read_arrays, read_checkpoint, write_arrays
from rlexp.sample_batch import Array
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.agents import make_agent
from tests.lab.checkpoints import forge, trained_with
from tests.lab.envs import COUNTING_ENV


@pytest.fixture(autouse=True)
def _own_env(own_state: None) -> None:
    trained_with("tests.lab.envs", COUNTING_ENV)


def saved(folder: Path, env: str = COUNTING_ENV, trained_on: str = COUNTING_ENV, **metadata: Any) -> Path:
    """Write a checkpoint of a policy for ``trained_on`` that names ``env``; return its path."""
    agent = make_agent(trained_on)
    agent.train()
    config = agent.config.model_dump(mode="json")
    experiment = {"name": "e", "run": "DQN", "env": env, "config": config}
    path = agent.save(folder / "checkpoint_000001", {"experiment": experiment, **metadata})
    agent.stop()
    return path


@pytest.mark.parametrize("metadata", [{}, {"imports": ["tests.lab.envs"]}])
def test_ones_own_may_name_modules(metadata: dict[str, Any], tmp_path: Path) -> None:
    assert len(evaluate_checkpoint(saved(tmp_path, **metadata), EvaluationRequest(2)).played.returns) == 2


@pytest.mark.parametrize(
    ("env", "metadata"),
    [("tests.module_of_a_stranger:Env", {}), ("CartPole-v1", {"imports": ["tests.module_of_a_stranger"]})],
)
def test_a_strangers_may_not(
    env: str, metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, env, **metadata)
    with pytest.raises(ResumeError, match=r"have not trained with.*tests\.module_of_a_stranger"):
        evaluate_checkpoint(path, EvaluationRequest(1))
    (tmp_path / "mine").mkdir()
    path = saved(tmp_path / "mine", imports=["tests.lab.envs"])
    allowed = EvaluationRequest(1, trusted=TrustedCode.of(["tests.lab.envs"], [COUNTING_ENV], ()))
    path.chmod(0o777)
    with pytest.raises(ResumeError, match="may be written by every user"):
        evaluate_checkpoint(path, allowed)
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(ResumeError, match="belongs to another user"):
        evaluate_checkpoint(path, allowed)


def test_a_strangers_folders_are_not_searched_for_what_the_callers_module_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs, ran = tmp_path / "mine", tmp_path / "theirs", tmp_path / "ran"
    for folder in (mine, theirs):
        folder.mkdir()
    own = "try:\n    import optional_module_of_mine\nexcept ImportError:\n    pass\n"
    (mine / "module_of_mine.py").write_text(own, encoding="utf-8")
    (theirs / "optional_module_of_mine.py").write_text(f"open({str(ran)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(mine), *sys.path])
    path = saved(tmp_path, "CartPole-v1", "CartPole-v1", module_folders=[str(theirs)])
    assert load_policy(path, imports=["module_of_mine"]).metadata.env == "CartPole-v1"
    assert "module_of_mine" in sys.modules
    assert str(theirs) not in sys.path
    assert not ran.exists()


@pytest.mark.parametrize(
    "change", [{"imports": 3}, {"imports": [1]}, {"imports": "os"}, {"experiment": [1]}, {"experiment": {"run": "DQN"}}]
)
def test_metadata_of_another_kind_are_an_error_of_the_checkpoint(change: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tmp_path)
    forge(path, metadata={**json.loads((path / "manifest.json").read_bytes())["metadata"], **change})
    with pytest.raises(CheckpointError, match="does not say how it was trained"):
        evaluate_checkpoint(path, EvaluationRequest(1))


def test_weights_of_another_network_are_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    metadata = json.loads((path / "manifest.json").read_bytes())["metadata"]
    metadata["experiment"]["config"]["model"]["fcnet_hiddens"] = [7, 7, 7]
    forge(path, metadata=metadata)
    with pytest.raises(CheckpointError, match="no weights of its own network"):
        evaluate_checkpoint(path, EvaluationRequest(1))


def arrays_of(path: Path, group: str) -> dict[str, Array]:
    """Return copies of a group's arrays."""
    return {name: array.copy() for name, array in read_arrays(path / f"{group}.safetensors").items()}


def with_array(path: Path, group: str, change: Callable[[Array], None], name: str | None = None) -> str:
    """Change an array, or the largest one, of a checkpoint's group, and seal the checkpoint again; return its name."""
    file = path / f"{group}.safetensors"
    arrays = arrays_of(path, group)
    name = name or max(arrays, key=lambda name: arrays[name].size)
    change(arrays[name])
    write_arrays(file, arrays)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    content = file.read_bytes()
    files[file.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(path, files=files)
    return f"{group}/{name}"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(value: float, tmp_path: Path) -> None:
    path = saved(tmp_path)
    name = with_array(path, "weights", lambda array: array.ravel().__setitem__(3, value))
    with pytest.raises(CheckpointError, match=rf"{name} holds 1 numbers of [\d,]+ that are NaN or infinite"):
        evaluate_checkpoint(path, EvaluationRequest(1))


def test_weights_too_large_to_add_are_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)
    name = with_array(path, "weights", lambda array: array.fill(3e38))
    with pytest.raises(CheckpointError, match=rf"{name} holds numbers up to 3e\+38, which overflow"):
        evaluate_checkpoint(path, EvaluationRequest(1))


def test_weights_whose_outputs_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)

    def one_is_huge(array: Array) -> None:
        array.fill(1.0)
        array.ravel()[0] = -3e38

    for name in arrays_of(path, "weights"):
        with_array(path, "weights", one_is_huge, name)
    with pytest.raises(CheckpointError, match=r"outputs are NaN or infinite; .* weights/\S+ has the largest, 3e.38"):
        evaluate_checkpoint(path, EvaluationRequest(1))


def test_training_does_not_begin_from_what_is_not_finite(tmp_path: Path) -> None:
    path = saved(tmp_path)
    name = with_array(path, "learner", lambda array: array.fill(np.nan))
    with pytest.raises(CheckpointError, match=f"{name} holds"):
        make_agent(checkpoint=read_checkpoint(path))
