"""Presets: an example or general settings for an agent and an env, and the file that they become."""

import gymnasium
import pytest

from rlexp.cluster.room.fit import fitted
from rlexp.cluster.room.machine import Cluster, Machine
from rlexp.config.command_line import Flag, LoadOptions, parse_overrides
from rlexp.config.keys.agents import AGENTS
from rlexp.config.load import load_experiments, load_plan, resolved_yaml
from rlexp.config.presets import (
    SOLVED,
    Kind,
    example_for,
    general_for,
    given_env_config,
    kind_of,
    kind_of_spaces,
    layered,
    written_out,
)
from rlexp.errors import ConfigError

KINDS: dict[Kind, str] = {
    "vector": "Acrobot-v1",
    "continuous": "Pendulum-v1",
    "image": "ALE/Tennis-v5",
    "table": "FrozenLake-v1",
}
SMALL = Cluster.of(Machine(cpus=2, gpus=0, memory_total=2**34, memory_available=2**33))
SPACES: list[tuple[str, str, tuple[int, ...], Kind]] = [
    ("Discrete(16)", "Discrete(4)", (16,), "table"),
    ("Box(-1.0, 1.0, (3,), float32)", "Discrete(4)", (3,), "vector"),
    ("Box(-1.0, 1.0, (3,), float32)", "Box(-1.0, 1.0, (2,), float32)", (3,), "continuous"),
    ("Box(0, 255, (48, 48, 3), uint8)", "Box(-1.0, 1.0, (2,), float32)", (48, 48, 3), "image"),
]


OF_NUMBERS = {"DDPG", "TD3", "APEX_DDPG"}
"""Agents that play continuous actions only."""


def kept(agent: str, env: str, *overrides: str, flags: tuple[Flag, ...] = ()) -> tuple[str, str, str]:
    """Return the file that a run keeps, what the run resolves to, and what the file resolves to; all fitted."""
    preset = example_for(agent, env, has_gpu=False) or general_for(agent, env, kind_of(env, {}) or "vector")
    options = LoadOptions(flags=(Flag(f"--env {env}", "env", env), *flags), adjust=lambda each: fitted(each, SMALL))
    source = layered(preset, overrides, options)
    (parsed,) = load_experiments([source], overrides, 3, LoadOptions(flags=options.flags))
    file = written_out(preset, source, parsed, options.adjust)
    return file.text, resolved_yaml(load_plan([source], overrides, 3, options)), resolved_yaml(load_plan([file]))


@pytest.mark.parametrize(
    ("agent", "kind"),
    [(agent, kind) for agent in AGENTS for kind in KINDS if kind == "continuous" or agent not in OF_NUMBERS],
)
def test_general_settings_are_experiments_that_fit_a_small_machine(agent: str, kind: Kind) -> None:
    needs_bins = kind == "continuous" and agent in {"DQN", "APEX", "PQN", "SIMPLEQ", "R2D2", "APEX_R2D2"}
    text, run, file = kept(agent, KINDS[kind], *(["discretize_actions=3"] if needs_bins else []))
    assert run == file
    assert f"env: {KINDS[kind]}" in text


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["config.lr=2e-3", "num_samples=3", "model.fcnet_activation=relu"],
        ["stop={timesteps_total: 1e6}", "model={fcnet_hiddens: [8]}", "env_config={x: 1}"],
        ["lr={grid_search: [1e-3, 1e-4]}", "n_step=1"],
        ["search.num_samples=2", "lr={loguniform: [1e-5, 1e-2]}"],
        ["grad_clip=0.5"],
    ],
)
@pytest.mark.parametrize(("agent", "env"), [("APEX", "CartPole-v1"), ("DQN", "LunarLander-v3"), ("DQN", "Acrobot-v1")])
def test_the_file_of_a_run_makes_the_same_run(agent: str, env: str, overrides: list[str]) -> None:
    text, run, file = kept(agent, env, *overrides)
    assert run == file
    assert text.startswith("# Settings: ")


def test_comments_stay_at_their_keys() -> None:
    text, _, _ = kept("DQN", "LunarLander-v3", "buffer_size=1e4", "seed=1")
    lines = text.splitlines()
    assert "    sample_batch_size: 1  # an update for every eight steps" in lines
    assert "    buffer_size: 10000" in lines
    assert lines[-1] == "    seed: 3"  # --seed wins


def test_keys_beside_config_stand_before_it() -> None:
    text, _, _ = kept("DQN", "LunarLander-v3", "num_samples=5")
    assert text.index("  num_seeds: 5") < text.index("  config:")


def test_a_learning_rate_replaces_the_schedule() -> None:
    text, _, _ = kept("PPO", "LunarLander-v3", flags=(Flag("--lr 1e-3", "config.lr", "1e-3"),))
    assert "    lr: 0.001\n" in text
    assert "lr_schedule" not in text


def test_the_schedule_ends_with_the_training() -> None:
    text, _, _ = kept("PPO", "LunarLander-v3", "stop.timesteps_total=1e6")
    assert "lr_schedule: [[0, 0.0005], [1000000, 0]]" in text
    own, _, _ = kept("PPO", "LunarLander-v3", "stop.timesteps_total=1e6", "lr_schedule=[[0, 1e-3], [7, 0]]")
    assert "lr_schedule: [[0, 0.001], [7, 0]]" in own


def test_exploration_ends_earlier_in_a_shorter_training_only() -> None:
    text, _, _ = kept("DQN", "LunarLander-v3", "stop.timesteps_total=30000")
    assert "epsilon_timesteps: 6000\n" in text
    text, _, _ = kept("DQN", "LunarLander-v3", "stop={timesteps_total: 3e6}")
    assert "epsilon_timesteps: 60000\n" in text


@pytest.mark.parametrize("steps", ["true", "0", "-5", ".inf", "many"])
def test_wrong_numbers_of_steps_are_an_error_of_the_option(steps: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kept("PPO", "CartPole-v1", f"stop.timesteps_total={steps}")
    assert {problem.where for problem in caught.value.problems} == {f"-o stop.timesteps_total={steps}"}


@pytest.mark.parametrize(
    ("agent", "env", "has_gpu", "example"),
    [
        ("PPO", "CartPole-v1", False, "cartpole-ppo"),
        ("PPO", "CartPole-v0", False, None),  # there is none for just this env
        ("PPO", "PongNoFrameskip-v4", False, "pong-ppo-small"),  # the one that was seen to learn
        ("APEX", "PongNoFrameskip-v4", False, "pong-apex-small"),
        ("APEX", "PongNoFrameskip-v4", True, "pong-apex"),  # the one that needs a GPU
        ("APEX", "BreakoutNoFrameskip-v4", False, "breakout-apex"),  # one for this env, not for several
        ("PPO", "Pendulum-v0", False, "pendulum-ppo"),  # by the current id
    ],
)
def test_the_best_example_is_found(agent: str, env: str, has_gpu: bool, example: str | None) -> None:
    found = example_for(agent, env, has_gpu)
    assert (found and found.title) == (example and f"the example {example}")


def test_an_example_that_stops_short_of_the_solved_score_goes_on_to_it() -> None:
    found = example_for("DQN", "CartPole-v1", has_gpu=False)
    assert found is not None
    assert found.title == "the example cartpole-dqn"
    assert "  stop: {episode_reward_mean: 475, timesteps_total: 300000}\n" in found.text


def test_an_example_with_a_grid_of_envs_is_one_for_each() -> None:
    text, _, _ = kept("DQN", "MinAtar/SpaceInvaders-v1")
    assert text.startswith("# Settings: the example minatar-dqn.")
    assert "  env: MinAtar/SpaceInvaders-v1\n" in text


def test_figures_of_an_example_are_not_those_of_a_run() -> None:
    for agent, env in (("PPO", "CartPole-v1"), ("APEX", "CartPole-v1"), ("DQN", "Pendulum-v1")):
        found = example_for(agent, env, has_gpu=False)
        assert found is not None
        assert "\n# score:" not in found.text
        assert "\n# seeds:" not in found.text


@pytest.mark.parametrize(
    ("env", "env_config", "kind"),
    [
        ("CartPole-v1", {}, "vector"),
        ("LunarLander-v3", {}, "vector"),
        ("LunarLander-v3", {"continuous": True}, "continuous"),
        ("HalfCheetah-v2", {}, "continuous"),
        ("PongNoFrameskip-v4", {}, "image"),
        ("PongNoFrameskip-v4", {"obs_type": "ram"}, "vector"),
        ("MinAtar/Breakout-v1", {}, "image"),
        ("Taxi-v3", {}, "table"),
        ("my_env:Maze", {}, None),
        ("Nope-v0", {}, None),
    ],
)
def test_the_kind_of_an_id(env: str, env_config: dict[str, object], kind: Kind | None) -> None:
    assert kind_of(env, env_config) == kind


@pytest.mark.parametrize(("observations", "actions", "shape", "kind"), SPACES)
def test_the_kind_of_spaces(observations: str, actions: str, shape: tuple[int, ...], kind: Kind) -> None:
    assert kind_of_spaces(observations, actions, shape) == kind


def test_arguments_of_the_env_from_overrides() -> None:
    overrides, _ = parse_overrides(["env_config={a: 1}", "config.env_config.b=2", "lr=1e-3"], None)
    assert given_env_config(overrides) == {"a": 1, "b": 2}


def test_settings_for_another_kind_of_env_say_so() -> None:
    preset = general_for("IMPALA", "ALE/Tennis-v5", "image")
    assert preset.title == "IMPALA for vector observations, as it has none for images"
    assert "observation_filter: NoFilter" in preset.text
    assert preset.text.startswith("# The example cartpole-impala.\n")
    assert "observation_filter: MeanStdFilter" in general_for("IMPALA", "Hopper-v5", "continuous").text


def test_solved_scores_are_those_of_gymnasium() -> None:
    assert {env: gymnasium.spec(env).reward_threshold for env in SOLVED} == SOLVED
    assert "episode_reward_mean: -100" in general_for("PPO", "Acrobot-v1", "vector").text
    assert "episode_reward_mean" not in general_for("PPO", "my_env:Maze", "table").text


def test_runs_are_named_after_env_and_agent() -> None:
    assert "\nmaze-ppo:\n" in general_for("PPO", "my_env:Maze", "table").text
    assert "\nale-tennis-v5-dqn:\n" in general_for("DQN", "ALE/Tennis-v5", "image").text
