"""The curves as a PNG, and the error if matplotlib is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import Axis
from rlexp.compare.report import write_picture
from rlexp.errors import UsageError
from tests.unit.run_results.run_folders import MadeTrial, make_run


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    run = make_run(tmp_path / "run", [MadeTrial([1.0, float(seed)], seed) for seed in (1, 2)])
    return compare_groups([f"_$\\nonsense{{$^={run}"], "episode_reward_mean", Axis.STEPS, None)


def test_missing_matplotlib_names_extra(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="matplotlib") as caught:
        write_picture(comparison, tmp_path / "curves.png")
    assert "pip install 'rlexp[plot]'" in str(caught.value.hint)
    assert not (tmp_path / "curves.png").exists()


def test_picture_is_png_for_any_group_name(comparison: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_picture(comparison, tmp_path / "curves")
    assert (tmp_path / "curves").read_bytes().startswith(b"\x89PNG\r\n")


def test_picture_at_unwritable_path(comparison: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=r"cannot write .*missing"):
        write_picture(comparison, tmp_path / "missing" / "curves.png")
