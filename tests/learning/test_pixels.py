"""APEX learns a game from its pixels, the whole way that Atari games go."""

import json
import time
from pathlib import Path

import pytest

from rlexp.config.load import load_plan
from tests.learning.commands import rlexp

FILE = Path(__file__).with_name("catch-apex.yaml")
SECONDS = 240
"""On two cores, from the command to the end."""


@pytest.mark.slow
@pytest.mark.ray
def test_catch_is_learned_in_four_minutes(tmp_path: Path) -> None:
    wanted = load_plan([FILE]).trials[0].experiment.stop["episode_reward_mean"]
    started = time.monotonic()
    done = rlexp("run", FILE, "--out", tmp_path, "--name", "run", "--seed", 0, "-q", timeout_s=2 * SECONDS)
    assert done.returncode == 0, done.stderr
    trial = json.loads((tmp_path / "run/run.json").read_text())["trials"][0]
    assert trial["episode_reward_mean"] >= wanted
    played = json.loads(rlexp("evaluate", tmp_path / "run", "--json").stdout)
    assert played["return_mean"] >= wanted
    assert time.monotonic() - started <= SECONDS
