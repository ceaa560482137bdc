"""Files of RLlib for IMPALA and APPO: their old keys, and the defaults of their ages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.agents import AGENTS
from rlexp.config.load import resolved_yaml
from tests.lab.experiment_files import config_of, messages, planned, problems

pytestmark = pytest.mark.usefixtures("in_own_folder")


@pytest.fixture
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def experiment(run: str, keys: str, env: str = "CartPole-v0") -> str:
    return f"a:\n  run: {run}\n  env: {env}\n  stop: {{training_iteration: 1}}\n  config: {{{keys}}}\n"


@pytest.mark.parametrize(
    ("run", "keys", "expected"),
    [
        ("IMPALA", "use_pytorch: true", {"vtrace": True, "train_batch_size": 500, "sample_batch_size": 50}),
        ("APPO", "sample_batch_size: 50, use_pytorch: true", {"vtrace": False}),
        ("APPO", "num_rollout_workers: 2", {"vtrace": True}),
        ("APPO", "num_env_runners: 2, circular_buffer_num_batches: 4, circular_buffer_iterations_per_batch: 3", {
            "minibatch_buffer_size": 4, "num_sgd_iter": 3}),
        ("IMPALA", "max_requests_in_flight_per_sampler_worker: 1", {"max_sample_requests_in_flight_per_worker": 1}),
        ("IMPALA", "entropy_coeff: -0.01", {"entropy_coeff": 0.01}),
        ("IMPALA", "replay_ratio: 0.75, replay_buffer_num_slots: 8", {"replay_proportion": 3.0}),
        ("IMPALA", "replay_ratio: 0.0", {"replay_proportion": 0.0}),
        ("IMPALA", "rollout_length: 7, num_accs: 1, num_accs_per_worker: 0", {"sample_batch_size": 7, "num_gpus": 1}),
        ("IMPALA", "num_accs: 1, _fake_accs: true", {"num_gpus": 0}),
        ("APPO", "target_network_update_freq: 2", {"target_update_frequency": 2}),
        ("APPO", "use_kl_loss: true, kl_target: 0.04", {"use_kl_loss": True, "kl_target": 0.04}),
    ],
)  # fmt: skip
def test_keys_mean_what_they_meant(run: str, keys: str, expected: dict[str, Any]) -> None:
    config = config_of(planned(experiment(run, keys)))
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("vtrace_drop_last_ts: true", "all steps of a fragment are learned"),
        ("num_aggregation_workers: 1", "the learner's thread trains on them"),
        ("_separate_vf_optimizer: true", "one Adam trains policy and values"),
    ],
)
def test_keys_of_its_machinery_have_no_effect(key: str, reason: str) -> None:
    (message,) = messages(planned(experiment("APPO", key)))
    assert reason in message


@pytest.mark.parametrize("name", ["IMPALATrainer", "APPOTrainer", "impala", "appo"])
def test_their_other_names(name: str) -> None:
    assert planned(experiment(name, "lr: 0.1")).experiments[0].run in {"IMPALA", "APPO"}


def test_a_batch_cannot_have_old_fragments_only() -> None:
    ((_, message, _),) = problems(planned, experiment("IMPALA", "replay_ratio: 1.0"))
    assert message == "config.replay_ratio must be a number >= 0 and < 1, got 1.0"


def test_another_clip_of_the_target_worker_is_refused() -> None:
    ((_, message, _),) = problems(planned, experiment("APPO", "target_worker_clipping: 3.0"))
    assert "another limit than 2" in message


@pytest.mark.parametrize("run", AGENTS)
def test_what_a_run_keeps_is_read_as_the_same_trial(run: str) -> None:
    """A resolved file has every key of its agent, among them names that other agents had in old releases."""
    env = "Pendulum-v1" if run in {"DDPG", "TD3", "APEX_DDPG"} else "CartPole-v1"
    plan = planned(experiment(run, "seed: 1", env))
    again = planned(resolved_yaml(plan))
    assert again.trials == plan.trials
    assert not [message for message in messages(again) if " is config." in message]
