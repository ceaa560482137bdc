"""What a machine offers, read from a made-up root folder, and what does not fit it."""

import os
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room import Cluster, Machine, available_cpus, available_gpus, check_fits, this_machine
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.dqn import DQNConfig, DQNExperiment
from rlexp.config.keys.ppo import PPOExperiment
from rlexp.config.keys.trial import Trial
from rlexp.errors import ResourceError

ALL_CPUS = len(os.sched_getaffinity(0))
TWO_CPUS = Cluster.of(Machine(cpus=2, gpus=0, memory_total=2**33, memory_available=2**32))


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_available_cpus_without_quota_is_affinity(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == ALL_CPUS
    put(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert available_cpus(tmp_path) == ALL_CPUS


@pytest.mark.parametrize("group", ["", "slice/job"])
def test_available_cpus_cgroup_v2_quota(tmp_path: Path, group: str) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/slice/job/step\n")
    put(tmp_path, f"sys/fs/cgroup/{group}/cpu.max", "150000 100000\n")
    assert available_cpus(tmp_path) == 1


def test_available_cpus_cgroup_v1_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert available_cpus(tmp_path) == 1
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    assert available_cpus(tmp_path) == ALL_CPUS


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("", 0), ("-1", 0), ("0", 1), ("0,1,2", 2), ("1,-1,0", 1), ("GPU-8f3c", 1)]
)
def test_available_gpus_are_visible_devices(tmp_path: Path, visible: str | None, count: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}", "")
    assert available_gpus(tmp_path, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == count


def test_this_machine_has_cpus_and_memory() -> None:
    machine = this_machine()
    assert 1 <= machine.cpus <= ALL_CPUS
    assert 0 < machine.memory_available <= machine.memory_total


def trial(**config: Any) -> Trial:
    data = {"name": "cartpole-apex", "run": "APEX", "env": "CartPole-v1", "config": config}
    return Trial(0, "00000-APEX-CartPole-v1", AGENTS["APEX"].model_validate(data), {}, 0)


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        (
            {"num_workers": 16},
            "cartpole-apex needs 17 CPUs (1 driver + 16 workers x 1), this machine has 2",
            "-o config.num_workers=1, or -o config.num_cpus_per_worker=0.06",
        ),
        (
            {"num_workers": 3, "num_cpus_per_worker": 0.5},
            "cartpole-apex needs 2.5 CPUs (1 driver + 3 workers x 0.5), this machine has 2",
            "-o config.num_workers=2, or -o config.num_cpus_per_worker=0.33",
        ),
        (
            {"num_workers": 200},
            "cartpole-apex needs 201 CPUs (1 driver + 200 workers x 1), this machine has 2",
            "-o config.num_workers=1",
        ),
        (
            {"num_workers": 1, "num_cpus_for_driver": 3},
            "cartpole-apex needs 4 CPUs (3 driver + 1 workers x 1), this machine has 2",
            "-o config.num_cpus_for_driver=2 -o config.num_workers=0",
        ),
        (
            {"num_workers": 0, "num_gpus": 1},
            "cartpole-apex needs 1 GPU (1 learner + 0 workers x 0), this machine has none",
            "-o config.num_gpus=0",
        ),
    ],
)
def test_check_fits_reports_need_and_override(config: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ResourceError) as caught:
        check_fits([trial(**config), trial(**config)], TWO_CPUS)
    assert [(problem.message, problem.hint) for problem in caught.value.problems] == [(message, f"{hint}, or --fit")]
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        (
            {"num_workers": 4, "num_learners": 2},
            "a needs 7 CPUs (1 driver + 4 workers x 1 + 2 learners x 1), this machine has 4",
            "-o config.num_workers=1, or -o config.num_cpus_per_worker=0.25, or --fit",
        ),
        (
            {"num_workers": 0, "num_learners": 4},
            "a needs 5 CPUs (1 driver + 0 workers x 1 + 4 learners x 1), this machine has 4",
            "-o config.num_learners=1, or --fit",
        ),
        (
            {"num_workers": 4, "num_learners": 4},
            "a needs 9 CPUs (1 driver + 4 workers x 1 + 4 learners x 1), this machine has 4",
            "-o config.num_learners=1 -o config.num_workers=3, or "
            "-o config.num_learners=1 -o config.num_cpus_per_worker=0.75, or --fit",
        ),
        (
            {"num_workers": 0, "num_learners": 2, "num_cpus_for_driver": 5},
            "a needs 7 CPUs (5 driver + 0 workers x 1 + 2 learners x 1), this machine has 4",
            "-o config.num_learners=1 -o config.num_cpus_for_driver=4 -o config.num_workers=0, or --fit",
        ),
        (
            {"num_workers": 0, "num_learners": 2, "num_gpus": 2},
            "a needs 2 GPUs (2 learners + 0 workers x 0), this machine has none",
            "-o config.num_gpus=0, or --fit",
        ),
    ],
)
def test_check_fits_counts_learners(config: dict[str, Any], message: str, hint: str) -> None:
    keys = {"name": "a", "run": "PPO", "env": "CartPole-v1", "config": config}
    machine = Cluster.of(Machine(cpus=4, gpus=0, memory_total=2**40, memory_available=2**40))
    with pytest.raises(ResourceError) as caught:
        check_fits([Trial(0, "0", PPOExperiment.model_validate(keys), {}, 0)], machine)
    assert [(problem.message, problem.hint) for problem in caught.value.problems] == [(message, hint)]


def test_check_fits_reports_all_shortfalls() -> None:
    with pytest.raises(ResourceError) as caught:
        check_fits(
            [trial(num_workers=2), trial(num_workers=1), trial(num_workers=3, num_gpus_per_worker=0.5)], TWO_CPUS
        )
    assert len(caught.value.problems) == 3


def test_check_fits_accepts() -> None:
    check_fits([trial(num_workers=1), trial(num_workers=4, num_cpus_per_worker=0.25), trial(num_workers=0)], TWO_CPUS)


@pytest.mark.parametrize(
    ("run", "config", "needed"),
    [("DQN", {"compress_observations": False}, "13.8"), ("APEX", {"replay_storage": "shared_memory"}, "105.4")],
)
def test_check_fits_refuses_replay_larger_than_memory(run: str, config: dict[str, Any], needed: str) -> None:
    game = AGENTS[run].model_validate(
        {
            "name": "pong",
            "run": run,
            "env": "PongNoFrameskip-v4",
            "config": {"buffer_size": 2_000_000, "num_workers": 1, **config},
        }
    )
    with pytest.raises(ResourceError) as caught:
        check_fits([Trial(0, "0", game, {}, 0)], TWO_CPUS)
    assert caught.value.message == f"pong may need {needed} GiB for replay, this machine has 8.0 GiB"


def test_check_fits_refuses_custom_resources() -> None:
    config = DQNConfig(num_workers=1, custom_resources_per_worker={"rack": 2.0})
    experiment = DQNExperiment(name="racked", run="DQN", env="CartPole-v1", config=config)
    trial = Trial(0, "00000", experiment, {}, 0)
    machine = Cluster.of(Machine(cpus=8, gpus=0, memory_total=2**40, memory_available=2**40))
    with pytest.raises(ResourceError, match="racked needs 2 rack for each worker"):
        check_fits([trial], machine)
