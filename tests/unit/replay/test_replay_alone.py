"""The replay library is used without the rest: it loads NumPy only, and the example in its page learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

ALONE = """
import importlib.abc, sys

class NumpyOnly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {"rlexp", "numpy"} | sys.stdlib_module_names:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, NumpyOnly())
import numpy as np
from rlexp.replay import NStepConfig, PrioritizedReplayBuffer, ReplayBuffer, SharedPrioritizedReplayBuffer

wide = ((300,), np.float32)
columns = {"obs": wide, "new_obs": wide, "rewards": ((), float), "terminated": ((), bool)}
rows = {name: np.ones((20, *shape), dtype) for name, (shape, dtype) in columns.items()}
config = NStepConfig(3, 0.99)
shared = SharedPrioritizedReplayBuffer(50, columns, 1, n_step=config)
shared.writer(0).add(**rows)
for buffer in (ReplayBuffer(50, columns), PrioritizedReplayBuffer(50, columns, n_step=config), shared):
    if buffer is not shared:
        buffer.add(**rows)
        buffer.save(sys.argv[1])
        buffer.load(sys.argv[1])
    assert len(buffer) == 20 and buffer.sample(8)["obs"].shape == (8, 300)
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__spec__", None)}
print(*sorted(loaded - sys.stdlib_module_names))
"""


def run(arguments: list[str], cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_replay_library_needs_numpy_only(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    modules = run(["alone.py", "replay.npz"], tmp_path).split()
    assert set(modules) - {"_distutils_hack", "sitecustomize", "usercustomize"} == {"numpy", "rlexp"}


def test_apex_example_of_the_page_learns(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    page = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    for name in ("model.py", "apex.py"):
        saved = re.search(rf"<!-- docs-test: file={name} -->\n```python\n(.*?)```", page, re.DOTALL)
        assert saved is not None
        (tmp_path / name).write_text(saved[1], encoding="utf-8")
    printed = run(["apex.py", "3000"], tmp_path)
    before, after = (float(number) for number in re.findall(r"mean return (\S+)", printed))
    assert before < 30
    assert after > 40
