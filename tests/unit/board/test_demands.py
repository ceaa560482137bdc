"""What a task may ask of other people's machines: a number at an extreme is refused before anything is made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from pydantic import BaseModel, ValidationError

from rlexp.agents.workers import PlayedTrial
from rlexp.board import task as task_description
from rlexp.board.actor import joiner
from rlexp.board.actor.joiner import JoinedTask
from rlexp.board.actor.trainer import TrainerLimits, training_obstacle
from rlexp.board.demands import (
    MOST,
    actor_excess,
    bytes_in_replay,
    bytes_of_row,
    network_excess,
    number_excess,
    trainer_excess,
)
from rlexp.board.messages.basics import Task
from rlexp.board.task import SeatSpecs, describe_trial, joinable_trial, read_description
from rlexp.cluster.room.machine import Machine
from rlexp.config.keys.apex import ApexConfig, ApexExperiment
from rlexp.config.keys.dqn import DQNConfig, DQNExperiment
from rlexp.config.keys.impala import APPOConfig
from rlexp.config.keys.r2d2 import ApexR2D2Config, R2D2Config
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.errors import TrialError, UsageError
from rlexp.replay.shard import ReplayConfig, ReplayShard
from rlexp.sample_batch import ACTIONS, FRAME_IDS, FrameRows, SampleBatch
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.board import played, task_with
from tests.lab.memory_board import MemoryBoard, MemoryServer

GIB = 1 << 30
MACHINE = Machine(4, 0, 8 * GIB, 8 * GIB)
ENV = "CartPole-v1"
EXTREMES: tuple[Any, ...] = (10**15, 1e300, [10**15], [[0, 1e30]], [[10**15, 8, 4]])
REPOSITORY = Path(__file__).parents[3]


def numeric_keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each key of a model that takes a number far beyond any use, with the number."""
    for name, field in model.model_fields.items():
        group = type(field.get_default(call_default_factory=True))
        if isinstance(group, type) and issubclass(group, BaseModel):
            yield from numeric_keys(group, (*path, name))
            continue
        for extreme in EXTREMES:
            try:
                model.__pydantic_validator__.validate_assignment(model.model_construct(), name, extreme)
            except (ValidationError, ValueError) as error:
                if "frozen" not in str(error):
                    continue
            yield (*path, name), extreme
            break


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(base[key], over[key]) for key in base.keys() & over.keys() if isinstance(over[key], dict)}
    return base | over | both


NUMERIC = [*numeric_keys(ApexConfig)]
"""With what makes them have an effect, and the keys between which there would be a conflict."""
BESIDE: dict[str, dict[str, Any]] = {
    "train_batch_size": {"buffer_size": 10**15},
    "buffer_size": {},
    "v_max": {"num_atoms": 51},
    "v_min": {"num_atoms": 51, "v_max": 1e301},
    "softmax_temp": {"soft_q": True},
    "sigma0": {"noisy": True},
    "parameter_noise_initial_stddev": {"parameter_noise": True},
    "exploration_warmup_timesteps": {"per_worker_exploration": False},
    "optimizer.num_cpus_per_shard": {"num_workers": 1},
    "optimizer.gatherers": {"num_workers": 1},
    "optimizer.num_replay_buffer_shards": {"buffer_size": 10**15},
    "board.min_actors": {"board": {"actors": 10**15}},
    "min_num_workers": {"num_workers": 10**15},
    "epsilon_timesteps": {"per_worker_exploration": False},
    "evaluation_config.horizon": {"evaluation_interval": 1},
}
UNUSABLE = {"num_gpus", "num_gpus_per_worker"}
"""Refused as keys that this agent has no use for."""


def config_with(path: tuple[str, ...], extreme: Any) -> dict[str, Any]:
    return merged(BESIDE.get(".".join(path), {}), nested(path, extreme))


def announced(config: dict[str, Any]) -> Task:
    own = DQNConfig()
    env_config = env_config_of(ENV, own, NO_MODULES)
    description = describe_trial(own, PlayedTrial(env_config, 3, *spaces_of(env_config)))
    return Task("t1", "small", 1, {**description, "agent": "APEX", "config": config})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("actor.trainer", "actor.joiner", "task"):
        monkeypatch.setattr(f"rlexp.board.{module}.this_machine", lambda: MACHINE)


def why_not_trained(task: Task) -> str:
    obstacle = training_obstacle(task, TrustedCode(), TrainerLimits())
    assert obstacle is not None
    return obstacle.message


def why_not_played(task: Task) -> str:
    obstacle = JoinedTask(MemoryBoard(MemoryServer()), "m", "", TrustedCode(), None).obstacle(task)  # type: ignore[arg-type]
    assert obstacle is not None
    return obstacle.message


def test_numeric_keys_are_found() -> None:
    names = {".".join(path) for path, _ in NUMERIC}
    assert len(names) > 60
    assert {"n_step", "lr", "hiddens", "lr_schedule", "model.conv_filters", "board.window", "seed"} - names == {"seed"}


@pytest.mark.parametrize(("path", "extreme"), NUMERIC, ids=[".".join(path) for path, _ in NUMERIC])
def test_each_number_at_an_extreme_is_refused_with_key_number_and_limit(path: tuple[str, ...], extreme: Any) -> None:
    config, key, process = config_with(path, extreme), ".".join(path), psutil.Process()
    before_s, before = time.monotonic(), process.memory_info().rss
    said = [why_not_played(announced(config)), why_not_trained(task_with(config))]
    assert time.monotonic() - before_s < 5.0
    assert process.memory_info().rss - before < 200 * 2**20
    if key not in UNUSABLE:
        assert all("asks for too much: config." in text and "allowed" in text for text in said), said
    assert key in said[0] or BESIDE.get(key), said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sample_batch_size": 10**9}, "config.sample_batch_size is 1,000,000,000, and at most 100,000 is allowed"),
        ({"num_threads_per_worker": 100_000}, "config.num_threads_per_worker is 100,000, and at most 256 is allowed"),
        ({"num_envs_per_worker": 10**6}, "config.num_envs_per_worker is 1,000,000, and at most 1,024 is allowed"),
        ({"num_cpus_per_worker": 10**6}, "config.num_cpus_per_worker is 1,000,000, and at most 256 is allowed"),
        ({"hiddens": [10**5, 10**5]}, "weights or more is asked for, and at most 1,000,000,000 are allowed"),
        ({"model": {"fcnet_hiddens": [20_000, 40_000]}}, "needs 9.2 GiB or more, and 8.0 GiB are allowed"),
        ({"model": {"conv_filters": [[10**4, 8, 4], [10**4, 8, 2], [256, 11, 1]]}}, "of 6,710,597,120 weights"),
        ({"hiddens": [1] * 5000}, "config.hiddens has 5,000 items, and at most 1,000 are allowed"),
        ({"lr_schedule": [[step, 1.0] for step in range(2000)]}, "config.lr_schedule has 2,000 items"),
    ],
)
def test_numbers_that_take_memory_or_threads_are_refused_by_both_sides(config: dict[str, Any], said: str) -> None:
    trained, played = why_not_trained(task_with(config)), why_not_played(announced(config))
    assert said in played
    assert said in trained or "GiB" in said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"board": {"window": 10_000}, "sample_batch_size": 1000, "num_envs_per_worker": 100}, "config.board.window"),
        ({"board": {"max_weights_mb": 9000}}, "config.board.max_weights_mb of 9,000 MB needs 16.8 GiB"),
        ({"num_workers": 5000, "num_envs_per_worker": 1000}, "config.num_envs_per_worker is 5,001,000, and at most"),
        ({"board": {"min_fragment_steps": 10**5}, "num_envs_per_worker": 1024, "sample_batch_size": 10**5}, "GiB"),
    ],
)
def test_actor_refuses_what_its_memory_has_no_room_for(config: dict[str, Any], said: str) -> None:
    assert said in why_not_played(announced(config))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_workers": 1000, "num_cpus_per_worker": 0}, "1,004 processes, and at most 32 (8 per CPU) are allowed"),
        (
            {"num_workers": 20, "num_cpus_per_worker": 0, "optimizer": {"num_replay_buffer_shards": 20}},
            "config.num_workers of 20, 20 shards and 0 gatherers are 40 processes",
        ),
        (
            {"num_workers": 20, "num_cpus_per_worker": 0, "optimizer": {"gatherers": 30}},
            "4 shards and 30 gatherers are 54 processes",
        ),
        ({"num_workers": 16, "num_cpus_per_worker": 0, "num_envs_per_worker": 1024}, "needs 64.0 GiB"),
        ({"buffer_size": 500_000_000}, "config.buffer_size of 500,000,000 rows needs 14.9 GiB"),
        ({"train_batch_size": 10**6, "optimizer": {"learner_queue_depth": 1000}}, "config.train_batch_size of 1,000,0"),
        ({"train_batch_size": 10**6, "hiddens": [4096]}, "rows in an update of layers of 4,609 outputs needs 85.8 GiB"),
    ],
)
def test_trainer_refuses_what_its_machine_has_no_room_for(config: dict[str, Any], said: str) -> None:
    assert said in why_not_trained(task_with(config))


def test_trainer_in_a_cluster_bounds_processes_by_the_cpus_that_are_reserved() -> None:
    given = {"num_workers": 1000, "num_cpus_per_worker": 0}
    obstacle = training_obstacle(task_with(given), TrustedCode(), TrainerLimits(in_cluster=True))
    assert obstacle is not None
    assert "1,004 processes, and at most 8" in obstacle.message
    given = {"num_workers": 1000, "num_cpus_per_worker": 1}
    assert training_obstacle(task_with(given), TrustedCode(), TrainerLimits(in_cluster=True)) is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"time_budget_s": 1e30}, "time_budget_s is 1e+30, and at most"),
        ({"stop": {"timesteps_total": 1e300}}, "stop.timesteps_total is 1e+300"),
        ({"checkpoint_evaluation_episodes": 10**9}, "checkpoint_evaluation_episodes is 1,000,000,000, and at most"),
        ({"max_failures": 10**15}, "max_failures is"),
        ({"num_samples": 10**9}, "1000000000 trials, more than 100"),
        ({"config": {"lr": {"grid_search": [1e-6 * n for n in range(1, 500)]}}}, "499 variants, more than 100"),
    ],
)
def test_numbers_beside_config_are_refused(keys: dict[str, Any], said: str) -> None:
    task = task_with(keys.pop("config", {}), **keys)
    before_s = time.monotonic()
    assert said in why_not_trained(task)
    assert time.monotonic() - before_s < 5.0


def test_text_lists_and_depth_have_limits_too() -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"a": deep}
    assert "nested deeper than 16 levels" in str(number_excess(deep))
    assert "env has 70,000 characters" in str(number_excess({"env": "x" * 70_000}))
    assert "seed is" in str(number_excess({"seed": 10**400}))
    assert "lr is nan" in str(number_excess({"lr": float("nan")}))
    assert number_excess({"explore": True, "lr": None}) is None


def test_env_with_many_different_bounds_is_within_the_limits() -> None:
    bounds = np.linspace(1.001, 7.77, 999)
    spaces = gym.spaces.Box(-bounds, bounds, dtype=np.float64), gym.spaces.Discrete(3)
    own = DQNConfig()
    trial = PlayedTrial(env_config_of(ENV, own, NO_MODULES), 3, *spaces)
    assert number_excess(describe_trial(own, trial)) is None


def test_limits_name_keys_that_exist() -> None:
    apex = ApexExperiment(name="a", run="APEX", env=ENV, config=ApexConfig()).model_dump(mode="json")
    others = [config.model_dump(mode="json") for config in (APPOConfig(), ApexR2D2Config())]
    for key in MOST:
        value: Any = {**apex, "config": {**others[0], **apex["config"], **others[1]}}
        for name in key.split("."):
            assert name in value, key
            value = value[name]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model": {"fcnet_hiddens": [20_000, 40_000]}}, "a network (config.model) of 800,000,000 weights"),
        ({"model": {"fcnet_hiddens": [20_000, 20_000], "vf_share_layers": False}}, "of 800,000,000 weights"),
        ({"learner_queue_size": 10_000, "train_batch_size": 10**6}, "rows in 10,001 queued batches needs"),
        ({"replay_buffer_num_slots": 10**6, "replay_proportion": 0.5}, "config.replay_buffer_num_slots of"),
    ],
)
def test_what_samples_without_replay_need_is_bounded_too(config: dict[str, Any], said: str) -> None:
    found = trainer_excess(APPOConfig.model_validate({"num_envs_per_worker": 8, **config}), 4, 8 * GIB)
    assert found is not None
    assert said in found


LSTM = {"use_lstm": True, "lstm_cell_size": 16_000}


def test_lstm_counts_with_the_weights_of_its_network() -> None:
    for config in (APPOConfig.model_validate({"model": LSTM}), R2D2Config.model_validate({"model": LSTM})):
        found = network_excess(config, 64 * GIB)
        assert found is not None
        assert "weights or more is asked for, and at most 1,000,000,000 are allowed" in found


SPACES_OF_CARTPOLE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
FRAMES = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)


def test_rows_of_sequences_have_as_many_observations_as_their_keys_ask_for() -> None:
    """Of images, a fragment has each frame once."""
    short = bytes_of_row(R2D2Config(), *SPACES_OF_CARTPOLE)
    long = R2D2Config.model_validate({"burn_in": 100_000})
    assert bytes_of_row(DQNConfig(), *SPACES_OF_CARTPOLE) < short < bytes_of_row(long, *SPACES_OF_CARTPOLE) / 500
    assert bytes_of_row(R2D2Config(), FRAMES, SPACES_OF_CARTPOLE[1]) < 3 * 4 * 84 * 84
    found = actor_excess(long, GIB, SPACES_OF_CARTPOLE)
    assert found is not None
    assert "config.board.window of" in found


REPLAY = {"burn_in": 8, "buffer_size": 1600, "compress_observations": False, "model": {"max_seq_len": 16}}


def test_sequences_in_replay_take_what_is_counted() -> None:
    config = R2D2Config.model_validate({**REPLAY, "sample_batch_size": 100, "zero_init_states": False, "board": {}})
    counted = bytes_in_replay(config, *SPACES_OF_CARTPOLE)
    assert config.replay is not None
    shard = ReplayShard(ReplayConfig(100, 1, 8, False, 0.6, 1e-6, config.replay.storage), 0)
    for rows, _ in played(config, count=40):
        shard.add_batch(rows)
    assert shard.stats().size == 100
    assert shard.stats().nbytes <= counted <= 1.2 * shard.stats().nbytes


def test_images_of_sequences_in_replay_take_what_is_counted() -> None:
    config, rng = R2D2Config.model_validate(REPLAY), np.random.default_rng(0)
    assert config.replay is not None
    space, shard = gym.spaces.Box(0, 255, (24, 24, 3), np.uint8), None
    counted = bytes_in_replay(config, space, gym.spaces.Discrete(5))
    shard = ReplayShard(ReplayConfig(100, 1, 8, False, 0.6, 1e-6, config.replay.storage), 0)
    seen = 3 * (8 + 16 + 1)  # the burn-in has the frames of the sequence before
    rows = SampleBatch({FRAME_IDS: np.arange(seen, dtype=np.int32)[None], ACTIONS: np.zeros((1, 16), np.int64)})
    for first in range(0, 100 * 3 * 16, 3 * 16):
        frames = rng.integers(0, 255, (seen, 24, 24, 1), np.uint8)
        shard.add_batch(FrameRows(rows, frames, np.arange(first, first + seen)))
    assert shard.stats().nbytes <= counted <= 1.5 * shard.stats().nbytes


LSTM_OF_ONE = {"max_seq_len": 1, "fcnet_hiddens": [1], "lstm_cell_size": 1}
SMALL_NETWORK = {"model": {"fcnet_hiddens": [1]}, "hiddens": [1]}
LONG_BURN_IN = {**SMALL_NETWORK, "burn_in": 10_000, "model": LSTM_OF_ONE, "train_batch_size": 1}


@pytest.mark.parametrize(
    ("run", "env", "config", "said"),
    [
        ("R2D2", ENV, {**LONG_BURN_IN, "buffer_size": 2 * 10**6}, "may need 298.2 GiB for replay"),
        ("DQN", "Taxi-v4", {"buffer_size": 10**8, "num_workers": 0}, "for replay, and 8.0 GiB are allowed"),
        (
            "APEX",
            "Taxi-v4",
            {
                **SMALL_NETWORK,
                "train_batch_size": 10**6,
                "buffer_size": 10**6,
                "optimizer": {"learner_queue_depth": 50},
            },
            "queued batches needs",
        ),
        (
            "DQN",
            "Taxi-v4",
            {"num_workers": 1, "num_envs_per_worker": 1024, "sample_batch_size": 10**4},
            "steps in each of",
        ),
    ],
)
def test_trainer_refuses_what_its_env_shows_without_a_limit_of_memory(
    run: str, env: str, config: dict[str, Any], said: str
) -> None:
    assert said in why_not_trained(task_with({"num_workers": 0, **config}, run=run, env=env))


def test_the_same_cpus_count_with_and_without_the_spaces_of_the_env() -> None:
    task = task_with({"num_workers": 20, "num_cpus_per_worker": 0}, run="DQN")
    assert training_obstacle(task, TrustedCode(), TrainerLimits()) is None


def test_waiting_steps_of_sequences_have_states() -> None:
    model = {"lstm_cell_size": 1024, "max_seq_len": 100_000}
    config = R2D2Config.model_validate({"num_envs_per_worker": 32, "model": model, "board": {"window": 1}})
    for spaces in (None, SPACES_OF_CARTPOLE):
        found = actor_excess(config, 24 * GIB, spaces)
        assert (found is None) is (spaces is None)
    assert "(config.burn_in, config.model.max_seq_len) of 32 envs" in str(found)


def test_train_batches_of_sequences_have_their_burn_in_too() -> None:
    found = trainer_excess(R2D2Config.model_validate({"burn_in": 100_000, "train_batch_size": 6400}), 4, 8 * GIB)
    assert found is not None
    assert "config.train_batch_size of 32,006,720 rows in" in found
    assert trainer_excess(R2D2Config(train_batch_size=6400), 4, 8 * GIB) is None


def test_each_quantile_has_a_loss_with_each() -> None:
    large = {"num_atoms": 4000, "hiddens": [], "train_batch_size": 64, "num_workers": 4}
    assert trainer_excess(ApexConfig.model_validate(large), 4, 8 * GIB) is None
    found = trainer_excess(ApexConfig.model_validate({**large, "distribution": "quantiles"}), 4, 8 * GIB)
    assert found is not None
    assert "an update of layers of 16,0" in found


@pytest.mark.parametrize("shares", [True, False])
def test_lstm_is_counted_once_as_policy_and_values_share_it(shares: bool) -> None:
    model = {"use_lstm": True, "lstm_cell_size": 1000, "fcnet_hiddens": [8], "vf_share_layers": shares}
    needs = APPOConfig.model_validate({"model": model}).network_needs
    assert needs is not None
    assert (needs.least_weights, needs.layer_outputs) == (4_000_000, 4008)


def test_rows_have_what_an_lstm_sees_of_many_actions() -> None:
    keys = {"use_lstm": True, "lstm_use_prev_action": True}
    few, many = (
        bytes_of_row(APPOConfig.model_validate({"model": keys}), SPACES_OF_CARTPOLE[0], gym.spaces.Discrete(number))
        for number in (2, 10_002)
    )
    assert many - few == 40_000


@pytest.mark.parametrize("file", sorted((REPOSITORY / "experiments").glob("*.yaml")), ids=lambda file: file.stem)
def test_published_experiments_are_within_the_limits(file: Path) -> None:
    for trial in load_plan([file]).trials:
        config = trial.experiment.config
        assert number_excess(trial.experiment.model_dump(mode="json")) is None
        assert trainer_excess(config, 64, 64 * GIB) is None
        if isinstance(config, DQNConfig):
            assert actor_excess(config, 2 * GIB) is None


def test_defaults_play_images_on_a_small_machine() -> None:
    assert actor_excess(ApexConfig(num_envs_per_worker=8), 4 * GIB, (FRAMES, gym.spaces.Discrete(6)), 4_000_000) is None
    assert network_excess(ApexConfig(), GIB) is None


def test_actor_compares_what_its_env_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    task = announced({"model": {"fcnet_hiddens": [64]}, "hiddens": [64]})
    SeatSpecs(read_description(task))
    little = Machine(1, 0, 10_000, 10_000)
    monkeypatch.setattr(task_description, "this_machine", lambda: little)
    monkeypatch.setattr(joiner, "this_machine", lambda: little)
    with pytest.raises(TrialError, match=r"asks for too much: .*GiB"):
        SeatSpecs(read_description(task))


def test_experiment_that_others_would_refuse_is_not_put_on_a_board(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(to_yaml({"a": {"run": "DQN", "env": ENV, "config": {"num_envs_per_worker": 5000}}}))
    with pytest.raises(UsageError, match="num_envs_per_worker is 5,000, and at most 1,024 is allowed"):
        joinable_trial(load_plan([file]).trials, "train it with rlexp run")


def test_dqn_has_no_other_keys() -> None:
    names = {path for path, _ in numeric_keys(DQNExperiment.model_fields["config"].annotation)}  # type: ignore[arg-type]
    assert names <= {path for path, _ in NUMERIC}
