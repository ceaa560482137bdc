"""What is said about names that PPO's files have for other things: keys of other libraries, metrics of other agents."""

from pathlib import Path

import pytest

from rlexp.config.load import load_plan
from rlexp.errors import ConfigError

FILE = "a:\n  run: {run}\n  env: CartPole-v1\n"


def problem(tmp_path: Path, text: str) -> tuple[str, str | None]:
    """Return the message and the hint of the only problem of an experiment."""
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_plan([path])
    (found,) = caught.value.problems
    return found.message, found.hint


@pytest.mark.parametrize(
    ("run", "key", "meant"),
    [
        ("PPO", "n_epochs", "num_sgd_iter"),
        ("PPO", "update_epochs", "num_sgd_iter"),
        ("PPO", "clip_range", "clip_param"),
        ("PPO", "clip_range_vf", "vf_clip_param"),
        ("PPO", "ent_coef", "entropy_coeff"),
        ("PPO", "n_steps", "sample_batch_size"),
        ("DQN", "n_steps", "n_step"),
    ],
)
def test_keys_of_other_libraries_are_translated_by_agent(run: str, key: str, meant: str, tmp_path: Path) -> None:
    found = problem(tmp_path, f"{FILE.format(run=run)}  config: {{{key}: 1}}\n")
    assert found == (f"unknown key config.{key} (agent {run})", f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("stop: {info/num_target_updates: 5}", "stop.info/num_target_updates"),
        ("checkpoint_score_attr: min-info/num_target_updates", "checkpoint_score_attr min-info/num_target_updates"),
    ],
)
def test_metrics_that_ppo_does_not_have_are_refused(keys: str, name: str, tmp_path: Path) -> None:
    message = f"{name} is never reported, because PPO has no such metric"
    assert problem(tmp_path, f"{FILE.format(run='PPO')}  {keys}\n") == (message, "name another metric")
    path = tmp_path / "dqn.yaml"
    path.write_text(f"{FILE.format(run='DQN')}  {keys}\n", encoding="utf-8")
    assert len(load_plan([path]).trials) == 1
