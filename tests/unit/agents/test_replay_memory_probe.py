"""What replay will take is measured before anything is trained, and refused where no memory could hold it."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.agents.replay_memory_probe import check_replay_fits, measured_bytes_per_transition
from rlexp.cluster.room.machine import Machine
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import Experiment
from rlexp.envs.registry import EnvConfig
from rlexp.errors import ResourceError, UsageError
from tests.lab.envs import COUNTING_ENV, PIXEL_ENV

SIZE = 32
IMAGE = SIZE * SIZE * 3
PIXELS = EnvConfig(PIXEL_ENV, {"size": SIZE})
MEMORY = 2**30


def experiment(run: str = "DQN", **config: Any) -> Experiment:
    made: Experiment = AGENTS[run].model_validate({"name": "a", "run": run, "env": PIXEL_ENV, "config": config})
    return made


def measured(run: str = "DQN", **config: Any) -> int:
    return measured_in(PIXELS, experiment(run, **config))


def measured_in(env_config: EnvConfig, experiment: Experiment) -> int:
    assert experiment.config.replay is not None
    return measured_bytes_per_transition(env_config, experiment.config.replay, experiment.config.fragment_length)


def test_plain_images_take_their_bytes_and_little_more() -> None:
    each = measured(compress_observations=False)
    # A one-step episode shows two images, of which half are like the one before, which has its frames already.
    assert IMAGE < each < 1.5 * IMAGE


def test_images_that_compress_take_less() -> None:
    packed, plain = measured(compress_observations=True), measured(compress_observations=False)
    assert packed < plain / 5


def test_more_shards_keep_more_frames_of_short_fragments_twice() -> None:
    one, four = (
        measured(
            "APEX", sample_batch_size=4, compress_observations=False, optimizer={"num_replay_buffer_shards": shards}
        )
        for shards in (1, 4)
    )
    assert four > 1.5 * one


def test_shared_memory_takes_whole_observations() -> None:
    each = measured("APEX", replay_storage="shared_memory", num_workers=1)
    assert 2 * IMAGE < each < 2 * IMAGE + 200


def test_small_observations_take_their_bytes() -> None:
    each = measured_in(EnvConfig(COUNTING_ENV), experiment())
    assert 40 < each < 200


def test_replay_that_no_memory_could_hold_is_refused_with_what_it_could() -> None:
    machine = Machine(2, 0, MEMORY, MEMORY)
    large = experiment(buffer_size=1_000_000, compress_observations=False)
    with pytest.raises(
        ResourceError, match=r"a would need \d\.\d GiB for replay, .* this machine has 1\.0 GiB"
    ) as caught:
        check_replay_fits(large, PIXELS, IMAGE, machine)
    assert caught.value.exit_code == 4
    assert caught.value.hint is not None
    fits = int(caught.value.hint.rpartition("=")[2])
    check_replay_fits(experiment(buffer_size=fits, compress_observations=False), PIXELS, IMAGE, machine)
    check_replay_fits(experiment(buffer_size=1_000_000, compress_observations=True), PIXELS, IMAGE, machine)


def test_an_env_is_not_played_for_replay_that_fits_in_any_case() -> None:
    not_there = EnvConfig("NoSuchEnv-v0")
    check_replay_fits(experiment(buffer_size=100_000), not_there, IMAGE, Machine(2, 0, MEMORY, MEMORY))


def test_frames_on_a_gpu_take_none_of_this_machines_memory() -> None:
    keys = {"buffer_size": 1_000_000, "replay_storage": "device"}
    not_there, machine = EnvConfig("NoSuchEnv-v0"), Machine(2, 1, MEMORY, MEMORY)
    check_replay_fits(experiment("APEX", num_gpus=1, **keys), not_there, IMAGE, machine)
    with pytest.raises(ResourceError, match="for replay"):
        check_replay_fits(experiment("APEX", **keys), PIXELS, IMAGE, machine)


def test_replay_on_the_learners_device_needs_frames() -> None:
    with pytest.raises(UsageError, match="an observation is only 16 bytes") as caught:
        check_replay_fits(experiment("APEX", replay_storage="device"), PIXELS, 16, Machine(2, 0, MEMORY, MEMORY))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("-o config.replay_storage=local")
