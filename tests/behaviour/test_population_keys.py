"""Keys of a population: with another value of those that may be searched, a copied checkpoint keeps its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.load import LoadOptions, load_plan
from rlexp.errors import CheckpointError, ConfigError
from rlexp.runs.checkpoints import read_checkpoint
from tests.envs import COUNTING_ENV

SMALL: dict[str, Any] = {
    "num_workers": 0,
    "model": {"fcnet_hiddens": [8]},
    "hiddens": [8],
    "sample_batch_size": 5,
    "train_batch_size": 16,
    "buffer_size": 1000,
    "learning_starts": 40,
    "schedule_max_timesteps": 10_000,
    "timesteps_per_iteration": 60,
    "min_iter_time_s": 0.0,
    "n_step": 1,
}
OTHERS: dict[str, Any] = {
    "sample_batch_size": 7,
    "num_envs_per_worker": 2,
    "batch_mode": "complete_episodes",
    "sample_async": True,
    "horizon": 9,
    "observation_filter": "MeanStdFilter",
    "synchronize_filters": False,
    "clip_rewards": True,
    "explore": False,
    "gamma": 0.9,
    "lr": 0.01,
    "lr_schedule": [[0, 0.1], [100, 0.01]],
    "train_batch_size": 8,
    "timesteps_per_iteration": 30,
    "min_iter_time_s": 0.01,
    "metrics_smoothing_episodes": 5,
    "seed": 8,
    "model": {"fcnet_hiddens": [16]},
    "per_worker_exploration": True,
    "epsilon_ladder": "env",
    "exploration_initial_eps": 0.5,
    "exploration_final_eps": 0.1,
    "exploration_fraction": 0.3,
    "epsilon_timesteps": 50,
    "exploration_warmup_timesteps": 20,
    "schedule_max_timesteps": 500,
    "soft_q": True,
    "softmax_temp": 0.5,
    "learning_starts": 80,
    "buffer_size": 2000,
    "prioritized_replay": False,
    "worker_side_prioritization": True,
    "prioritized_replay_alpha": 0.3,
    "prioritized_replay_beta": 0.7,
    "final_prioritized_replay_beta": 1.0,
    "beta_annealing_fraction": 0.5,
    "prioritized_replay_eps": 0.01,
    "prioritized_replay_beta_annealing_timesteps": 70,
    "compress_observations": False,
    "checkpoint_replay": False,
    "training_intensity": 2.0,
    "learner_precision": "bfloat16",
    "double_q": False,
    "dueling": False,
    "hiddens": [16],
    "noisy": True,
    "epsilon_with_noisy": True,
    "sigma0": 0.1,
    "parameter_noise": True,
    "parameter_noise_initial_stddev": 0.1,
    "num_atoms": 5,
    "n_step": 3,
    "target_network_update_freq": 50,
    "adam_epsilon": 1e-4,
    "grad_norm_clipping": None,
    "evaluation_interval": 2,
    "evaluation_num_episodes": 2,
    "evaluation_timeout_s": 9.0,
    "evaluation_config": {"explore": True},
    "sample_timeout_s": 9.0,
    "max_num_worker_restarts": 3,
    "num_threads_per_worker": 2,
    "optimizer": {"num_replay_buffer_shards": 2},
}
"""Another value than the default, or that of SMALL, of every key below."""
OF_ENVS_AND_PROCESSES = {
    *(
        "num_workers",
        "min_num_workers",
        "placement",
        "num_cpus_per_worker",
        "num_gpus_per_worker",
        "custom_resources_per_worker",
        "num_gpus",
    ),
    *("num_cpus_for_driver", "env_config", "preprocessor_pref", "replay_storage", "discretize_actions", "monitor"),
    *("v_min", "v_max", "board", "env_wrappers", "callbacks"),
}
"""Keys that are not tried here."""
EMPTYING = {"buffer_size", "prioritized_replay", "prioritized_replay_alpha", "checkpoint_replay"}


def restored_as(key: str, before: dict[str, Any], after: dict[str, Any], folder: Path) -> str:
    """Return what a trial finds that continues with the keys ``after`` from a checkpoint of one with ``before``."""
    is_apex = key == "optimizer"

    def make(changes: dict[str, Any], *checkpoint: Any) -> DQNAgent[Any]:
        if is_apex:
            config = ApexConfig.model_validate({**SMALL, **changes})
            return ApexAgent(COUNTING_ENV, config, InlineTaskPool(), 3, *checkpoint)
        return DQNAgent(COUNTING_ENV, DQNConfig.model_validate({**SMALL, **changes}), InlineTaskPool(), 3, *checkpoint)

    donor = make(before)
    donor.train()
    path = donor.save(folder / "checkpoint_000001", {})
    donor.stop()
    try:
        copy = make(after, read_checkpoint(path))
    except CheckpointError:
        return "refused"
    try:
        is_full = copy.optimizer.stats()["replay_fill"] > 0
        is_noted = any("replay starts empty" in event for event in copy.drain_events())
        assert is_full is not is_noted, "an empty replay has a note"
        copy.train()
        return "full" if is_full else "empty"
    finally:
        copy.stop()


def test_every_key_is_tried_or_listed() -> None:
    assert {*OTHERS, *OF_ENVS_AND_PROCESSES} == {*ApexConfig.model_fields}


@pytest.mark.key("search.scheduler")
@pytest.mark.parametrize("key", OTHERS)
def test_searched_keys_of_a_population_keep_replay(key: str, tmp_path: Path) -> None:
    changed = {key: OTHERS[key]}
    (tmp_path / "there").mkdir()
    (tmp_path / "back").mkdir()
    found = {
        restored_as(key, {}, changed, tmp_path / "there"),
        restored_as(key, changed, {}, tmp_path / "back"),
    }
    if key in EMPTYING:
        assert "empty" in found, "it need not be refused"
    assert (found != {"full"}) == (key in ApexConfig.KEPT_BY_PBT) or key == "observation_filter"


@pytest.mark.parametrize("key", [*sorted(EMPTYING), "discretize_actions", "v_max"])
def test_keys_that_do_not_fit_a_copied_checkpoint_are_refused(key: str, tmp_path: Path) -> None:
    values = {"prioritized_replay": "[true, false]", "checkpoint_replay": "[true, false]"}
    values |= {"prioritized_replay_alpha": "[0.4, 0.6]", "buffer_size": "[2000, 3000]"}
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "small:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 1000}\n  search: {scheduler: pbt}\n"
        f"  config:\n    {key}: {{choice: {values.get(key, '[3, 5]')}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_plan([file], options=LoadOptions(is_sweep=True))
    (problem,) = caught.value.problems
    assert problem.where.startswith(f"{file}:7:")
    assert problem.message == (
        f"{key} cannot be searched with scheduler: pbt, whose trials copy each other's weights and replay"
    )
    assert problem.hint == "use another scheduler, or write one value"


@pytest.mark.parametrize(("value", "count"), [("false", 1), ("true", 0), ("null", 0)])
def test_replay_that_checkpoints_leave_out_has_a_notice(value: str, count: int, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "small:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 1000}\n"
        "  search: {scheduler: pbt, num_samples: 4}\n"
        f"  config:\n    lr: {{loguniform: [1e-4, 1e-3]}}\n    checkpoint_replay: {value}\n"
    )
    notices = load_plan([file], options=LoadOptions(is_sweep=True)).notices
    found = [notice for notice in notices if "starts with an empty replay" in notice.message]
    assert [notice.where for notice in found] == [f"{file}:8:24"] * count
