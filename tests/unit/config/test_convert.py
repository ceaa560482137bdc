"""Converted files say the same in today's spelling, silently, and keep what their user wrote beside the keys."""

from pathlib import Path

import pytest

from rlexp.config.load import converted_file, load_plan, resolved_yaml

OLD = """\
# Ape-X as it was published.
pong:
  run: APEX_DQN   # the agent
  env: PongDeterministic-v4
  # Stop early.
  stop:
    sampler_results/episode_reward_mean: 19  # of 21
    timesteps_total: 1e6
  checkpoint_config: {checkpoint_frequency: 5}
  config:
    framework: tf  # or torch
    num_env_runners: {grid_search: [1, 2]}
    gpu: false
    exploration_config:
      type: EpsilonGreedy
      epsilon_timesteps: 200000
      final_epsilon: 0.01
    # Bigger than the default.
    model: {fcnet_hiddens: [512, {grid_search: [64, 32]}], use_lstm: false}
    replay_buffer_config:
      capacity: 500000
      type: MultiAgentPrioritizedReplayBuffer
    env_config:
      name: "#1: pong"
# The end.
"""


@pytest.fixture
def converted(tmp_path: Path) -> str:
    (tmp_path / "old.yaml").write_text(OLD)
    return converted_file(tmp_path / "old.yaml")


def test_converted_file_makes_same_plan_without_notices(tmp_path: Path, converted: str) -> None:
    (tmp_path / "new.yaml").write_text(converted)
    old = load_plan([tmp_path / "old.yaml"], fresh_seed=lambda: 7)
    new = load_plan([tmp_path / "new.yaml"], fresh_seed=lambda: 7)
    assert len(old.notices) > 8
    assert new.notices == ()
    assert resolved_yaml(new) == resolved_yaml(old)
    assert [trial.name for trial in new.trials] == [trial.name for trial in old.trials]


def test_convert_keeps_the_place_and_the_comments_of_the_agent(tmp_path: Path) -> None:
    lines = ["a:", "  env: CartPole-v1  # where", "  # how", "  algo: PPO  # why", "  stop: {timesteps_total: 100}"]
    (tmp_path / "old.yaml").write_text("\n".join(lines))
    assert converted_file(tmp_path / "old.yaml").splitlines() == [line.replace("algo", "run") for line in lines]


def test_convert_is_idempotent(tmp_path: Path, converted: str) -> None:
    (tmp_path / "new.yaml").write_text(converted)
    assert converted_file(tmp_path / "new.yaml") == converted


def test_convert_keeps_comments(converted: str) -> None:
    comments = ("# Ape-X as it was published.", "# Stop early.", "# of 21", "# Bigger than the default.", "# The end.")
    assert [converted.count(comment) for comment in comments] == [1] * 5
    assert '''name: "#1: pong"''' in converted.replace("'", '"'), "a hash in quotes begins no comment"


def test_convert_comments_each_change_at_its_key(converted: str) -> None:
    lines = converted.splitlines()
    found = next(number for number, line in enumerate(lines) if line.startswith("    num_workers: "))
    assert lines[found - 1] == "    # converted: config.num_env_runners is config.num_workers now"
    assert "    # converted: config.framework has no effect here: rlexp computes with PyTorch" in lines


def test_convert_current_file_has_no_comments(tmp_path: Path) -> None:
    text = "a:\n  run: DQN\n  env: CartPole-v1\n  stop: {time_total_s: 1}\n  config:\n    lr: 0.001  # small\n"
    (tmp_path / "f.yaml").write_text(text)
    assert converted_file(tmp_path / "f.yaml") == text


def test_convert_comments_minor_notices(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "a:\n  run: DQN\n  env: CartPole-v1\n  stop: {time_total_s: 1}\n  config:\n    framework: torch\n    lr: 1\n"
    )
    assert load_plan([path]).notices == ()
    assert "    # converted: config.framework is left out: rlexp computes with PyTorch\n    lr: 1\n" in converted_file(
        path
    )


@pytest.mark.parametrize(("key", "is_changed"), [("num_seeds", False), ("num_samples", True), ("repeat", True)])
def test_number_of_seeds_is_written_under_one_name_and_a_change_has_a_comment(
    key: str, is_changed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"a:\n  run: DQN\n  env: CartPole-v1\n  stop: {{time_total_s: 1}}\n  {key}: 3\n")
    written = converted_file(path)
    assert "\n  num_seeds: 3\n" in written
    assert ("  # converted: num_samples is num_seeds now\n  num_seeds: 3\n" in written) == is_changed


@pytest.mark.parametrize("choices", ["[0.0005, [[0, 0.1], [10, 0]]]", "[[[0, 0.1], [10, 0]], 0.001]"])
def test_grid_of_a_number_and_a_schedule(tmp_path: Path, choices: str) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(f"a:\n  run: DQN\n  env: CartPole-v1\n  config: {{lr: {{grid_search: {choices}}}}}\n")
    new.write_text(converted_file(old))
    before, after = ([trial.experiment for trial in load_plan([path], (), 0).trials] for path in (old, new))
    assert [experiment.essence for experiment in after] == [experiment.essence for experiment in before]
