"""The replay library without the rest: NumPy only, n-step transitions as workers fold them, and buffers in files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay.buffers import PrioritizedReplayBuffer, ReplayBuffer
from rlexp.replay.columns import NStepConfig, NStepFold
from rlexp.rollout.folds import NStep
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array
from tests.unit.replay.test_replay_buffers import COLUMNS, MakeBuffer, both, rows
from tests.unit.rollout.test_folds import GOES_ON, TERMINATED, TRUNCATED, make_fragment, make_steps

STEP_COLUMNS = {
    OBS: ((1,), np.float32),
    ACTIONS: ((), np.int64),
    REWARDS: ((), np.float32),
    "terminated": ((), bool),
    NEW_OBS: ((1,), np.float32),
}


def steps_of(endings: list[int]) -> tuple[dict[str, Array], Fragment]:
    """Return steps of one env that end as ``endings`` say, and a worker's stream of them; ends have a reset."""
    with_resets = [each for ending in endings for each in ([GOES_ON] if ending == GOES_ON else [ending, GOES_ON])]
    steps = make_steps(0, [2**number for number in range(len(with_resets))], with_resets)
    real = [step for step in steps if not step.is_reset]
    numbers = np.array([step.obs for step in real])
    columns: dict[str, Array] = {
        OBS: numbers[:, None].astype(np.float32),
        ACTIONS: -numbers,
        REWARDS: np.array([step.reward for step in real], np.float32),
        "terminated": np.array([step.ending == TERMINATED for step in real]),
        NEW_OBS: (numbers[:, None] + 1).astype(np.float32),
    }
    return columns, make_fragment([steps], 0, len(steps))


@given(
    endings=st.lists(st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED]), min_size=1, max_size=20),
    n_step=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
)
def test_fold_is_that_of_workers(endings: list[int], n_step: int, lengths: list[int]) -> None:
    endings = [*endings, TRUNCATED]  # where the stream stops, nothing waits
    fold = NStepFold({**STEP_COLUMNS, "cut": ((1,), np.uint8)}, NStepConfig(n_step, 0.5, truncated="cut"))
    columns, stream = steps_of(endings)
    steps = {**columns, "cut": np.equal(endings, TRUNCATED)[:, None]}
    parts, start = [], 0
    for length in lengths * len(endings):
        if start < len(endings):
            parts.append(fold.add(**{name: column[start : start + length] for name, column in steps.items()}))
            start += length
    assert len(fold.on_episode_end()[OBS]) == 0
    expected = NStep(n_step, 0.5).rows(stream, stream.num_steps)
    for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), expected[name])


@given(endings=st.lists(st.sampled_from([GOES_ON, TERMINATED, TRUNCATED]), min_size=1, max_size=12))
def test_fold_episode_end_is_a_truncation(endings: list[int]) -> None:
    fold, parts = NStepFold(STEP_COLUMNS, NStepConfig(3, 0.5)), []
    steps, _ = steps_of(endings)
    for number, ending in enumerate(endings):
        parts.append(fold.add(**{name: column[number] for name, column in steps.items()}))
        if ending == TRUNCATED:
            parts.append(fold.on_episode_end())
    parts.append(fold.on_episode_end())
    last = TRUNCATED if endings[-1] == GOES_ON else endings[-1]
    _, stream = steps_of([*endings[:-1], last])
    expected = NStep(3, 0.5).rows(stream, stream.num_steps)
    for name in (REWARDS, DISCOUNTS):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), expected[name])


def test_fold_keeps_copies_of_waiting_steps() -> None:
    fold, obs = NStepFold(STEP_COLUMNS, NStepConfig(2, 1.0)), np.zeros(1, np.float32)
    folded = []
    for number in range(3):
        obs[:] = number  # an env that uses its array again
        folded.append(fold.add(obs=obs, actions=number, rewards=1.0, terminated=False, new_obs=obs))
    obs[:] = 99
    assert [rows[OBS].tolist() for rows in folded] == [[], [[0]], [[1]]]
    assert [rows[NEW_OBS].tolist() for rows in folded] == [[], [[1]], [[2]]]


def test_fold_columns_have_discounts_and_no_ends() -> None:
    config = NStepConfig(2, 0.9, rewards="r", terminated="t", truncated="c", new_columns=("next_a", "next_b"))
    columns: dict[str, Any] = dict.fromkeys(("r", "t", "c", "a", "next_a", "next_b"), ((), np.float64))
    assert set(NStepFold(columns, config).columns) == {"r", "a", "next_a", "next_b", DISCOUNTS}
    steps = {name: np.arange(3.0) + place for place, name in enumerate(columns)} | {"t": [0, 0, 1], "c": [0, 0, 0]}
    rows = NStepFold(columns, config).add(**steps)
    assert rows["next_a"].tolist() == [5, 6, 6]
    assert rows["next_b"].tolist() == [6, 7, 7]
    assert rows["r"].dtype == np.float64
    assert rows["r"].tolist() == [0.9, 1 + 0.9 * 2, 2]
    assert rows[DISCOUNTS].tolist() == [np.float32(0.9**2), 0, 0]


@pytest.mark.parametrize(
    ("columns", "config", "message"),
    [
        (STEP_COLUMNS, NStepConfig(2, 0.9, truncated="cut"), "not declared: cut"),
        ({**STEP_COLUMNS, DISCOUNTS: ((), np.float32)}, NStepConfig(2, 0.9), "discounts: it cannot be declared"),
        ({**STEP_COLUMNS, REWARDS: ((), np.int64)}, NStepConfig(2, 0.9), "rewards are floats"),
        ({**STEP_COLUMNS, REWARDS: ((3,), np.float32)}, NStepConfig(2, 0.9), r"one number a step, not \[3\]"),
    ],
)
def test_fold_refuses_columns_that_do_not_fit(columns: Any, config: NStepConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NStepFold(columns, config)


@pytest.mark.parametrize("wrong", [{"n_step": 0}, {"gamma": 1.5}])
def test_fold_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1 and gamma from 0 to 1"):
        replace(NStepConfig(2, 0.9), **wrong)


def test_fold_takes_nothing_of_wrong_steps() -> None:
    fold = NStepFold(STEP_COLUMNS, NStepConfig(2, 0.9))
    with pytest.raises(ValueError, match="missing: new_obs"):
        fold.add(obs=[0], actions=0, rewards=0.0, terminated=False)
    assert len(fold.on_episode_end()[OBS]) == 0


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


@both
@pytest.mark.parametrize("added", [0, 3, 23])
def test_buffer_saved_and_loaded_draws_the_same(make: MakeBuffer, added: int, tmp_path: Path) -> None:
    original, copy = make(10, COLUMNS, seed=3), make(10, COLUMNS, seed=4)
    original.add(**rows(0, added))
    path = tmp_path / "replay.npz"
    original.save(path)
    copy.add(**rows(90, 2))
    old_keys = copy.sample(20)["keys"]
    copy.load(path)
    if isinstance(copy, PrioritizedReplayBuffer):
        assert copy.update_priorities(old_keys, np.full(20, 1e6)) == 20
    for buffer in (original, copy):
        buffer.add(**rows(added, 4))
    batches = [buffer.sample(100) for buffer in (original, copy)]
    for name in ("number", "weights", "picture"):
        np.testing.assert_array_equal(batches[0][name], batches[1][name])
    assert copy.get_all_transitions()["number"].tolist() == original.get_all_transitions()["number"].tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["replay.npz"]
    if added:
        with np.load(path, allow_pickle=False) as saved:
            assert sorted(saved["number"].tolist()) == list(range(max(added - 10, 0), added))


def test_prioritized_saves_priorities(tmp_path: Path) -> None:
    original, copy = (PrioritizedReplayBuffer(4, COLUMNS, alpha=1.0, eps=0.0, seed=seed) for seed in (0, 1))
    original.add(**rows(0, 6), priorities=[9, 9, 1, 2, 4, 8])
    original.save(tmp_path / "replay.npz")
    copy.load(tmp_path / "replay.npz")
    batch = copy.sample(200, beta=1.0)
    np.testing.assert_allclose(batch["weights"], 2.0 ** -(batch["number"] - 2.0))
    copy.add(**rows(6, 1))  # with the highest priority so far, 9
    batch = copy.sample(200, beta=1.0)
    assert batch["weights"].min() == pytest.approx(2 / 9)


@both
def test_columns_of_the_other_byte_order_are_held_in_this_machines(make: MakeBuffer, tmp_path: Path) -> None:
    columns = {"obs": ((2,), ">f4"), "number": ((), np.dtype(np.int64).newbyteorder(">"))}
    original, copy = make(4, columns), make(4, columns)
    original.add(obs=np.array([0.5, -1.5], ">f4"), number=7)
    original.save(tmp_path / "replay.npz")
    copy.load(tmp_path / "replay.npz")
    rows = copy.get_all_transitions()
    assert (rows["obs"].tolist(), rows["number"].tolist()) == ([[0.5, -1.5]], [7])
    assert [rows[name].dtype for name in ("obs", "number")] == [np.dtype(np.float32), np.dtype(np.int64)]


@pytest.mark.parametrize(
    ("message", "make", "changes"),
    [
        ("capacity is 4 there and 5", PrioritizedReplayBuffer, {"capacity": 5}),
        ("alpha is 0.6 there and 0.5", PrioritizedReplayBuffer, {"alpha": 0.5}),
        ("alpha is 0.6 there and None", ReplayBuffer, {}),
        ("it has the columns", PrioritizedReplayBuffer, {"columns": {**COLUMNS, "more": ((), np.int8)}}),
        (
            r"column obs is float32\[2, 2\] instead of float64",
            PrioritizedReplayBuffer,
            {"columns": {**COLUMNS, "obs": ((2,), np.float64)}},
        ),
    ],
)
def test_buffer_refuses_a_saved_buffer_that_does_not_fit(
    message: str, make: MakeBuffer, changes: dict[str, Any], tmp_path: Path
) -> None:
    original, other = PrioritizedReplayBuffer(4, COLUMNS), make(**{"capacity": 4, "columns": COLUMNS, **changes})
    original.add(**rows(0, 2))
    original.save(tmp_path / "replay.npz")
    more = {"more": [1]} if "more" in changes.get("columns", ()) else {}
    other.add(**rows(5, 1), **more)
    with pytest.raises(CheckpointError, match=message):
        other.load(tmp_path / "replay.npz")
    assert other.get_all_transitions()["number"].tolist() == [5]


def damaged(path: Path, how: str) -> None:
    """Change a saved buffer of two rows."""
    with np.load(path) as saved:
        parts = dict(saved.items())
    values = bytes(parts.pop("state.json"))
    match how:
        case "cut short":
            path.write_bytes(path.read_bytes()[:-300])
            return
        case "no zip":
            path.write_bytes(b"hello")
            return
        case "objects":
            parts["number"] = np.array([{}, {}], object)
        case "rows missing":
            parts["number"] = parts["number"][:1]
        case "NaN priority":
            parts["priorities_to_alpha"][0] = np.nan
        case "no generator":
            values = values.replace(b"PCG64", b"other")
        case "values missing":
            values = values.replace(b"num_added", b"num_other")
    np.savez(path, **parts)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("state.json", values)


@pytest.mark.parametrize(
    "how", ["cut short", "no zip", "objects", "rows missing", "NaN priority", "no generator", "values missing"]
)
def test_buffer_refuses_a_damaged_file(how: str, tmp_path: Path) -> None:
    path, buffer = tmp_path / "replay.npz", PrioritizedReplayBuffer(4, COLUMNS)
    buffer.add(**rows(0, 2))
    buffer.save(path)
    buffer.load(path)
    damaged(path, how)
    buffer.add(**rows(2, 1))
    with pytest.raises(CheckpointError, match=r"replay\.npz"):
        buffer.load(path)
    assert buffer.get_all_transitions()["number"].tolist() == [0, 1, 2]


def test_buffer_load_says_where_no_file_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ReplayBuffer(4, COLUMNS).load(tmp_path / "none.npz")
