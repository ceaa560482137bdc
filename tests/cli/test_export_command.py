"""What ``rlexp export`` refuses before it loads anything."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlexp.cli import app
from rlexp.commands import results
from rlexp.errors import CheckpointError, ResumeError, UsageError


def refused(*words: object) -> UsageError:
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    assert isinstance(done.exception, UsageError), done.output
    return done.exception


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_NEEDED", ())


def test_missing_extra_is_named_before_anything_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in {"onnxscript", "onnxruntime"} else found(name, package)

    monkeypatch.setattr(results, "_NEEDED", ("json", "onnxscript", "onnxruntime"))
    monkeypatch.setattr(importlib.util, "find_spec", without)
    error = refused("nowhere", "--onnx", tmp_path / "policy.onnx")
    assert error.message == "export needs onnxscript and onnxruntime, which are not installed"
    assert error.hint == "pip install 'rlexp[onnx]'"


@pytest.mark.usefixtures("_installed")
def test_target_is_checked_before_the_checkpoint(tmp_path: Path) -> None:
    there = tmp_path / "policy.onnx"
    there.write_text("mine")
    assert refused("nowhere", "--onnx", there).hint == "--overwrite replaces it"
    assert "is a directory" in refused("nowhere", "--onnx", tmp_path).message
    assert "there is no directory" in refused("nowhere", "--onnx", tmp_path / "no" / "policy.onnx").message
    assert there.read_text() == "mine"


@pytest.mark.usefixtures("_installed")
def test_no_checkpoint_no_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(tmp_path / "nowhere"), "--onnx", str(tmp_path / "policy.onnx")])
    assert isinstance(done.exception, CheckpointError | ResumeError)
    assert list(tmp_path.iterdir()) == []
