"""Population based training: trials are compared at equal milestones, as a slow reference does it afterwards.

Keys of a population: with another value of those that may be searched, a copied checkpoint keeps its replay.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.sweep import Point, Sweep
from rlexp.errors import CheckpointError, ConfigError, Problem
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import list_checkpoints, newest_checkpoint
from rlexp.runs.kept_checkpoints import keep_best
from rlexp.runs.record import Status
from rlexp.schedules import derive_seed
from rlexp.search.population import quantile_size
from tests.lab.agents import MAKERS
from tests.lab.envs import COUNTING_ENV
from tests.lab.sweeps import (
    ROW_STEPS,
    Copies,
    Rehearsals,
    Reward,
    Simulation,
    World,
    conclusion,
    journal,
    rows,
    saved,
    simulated,
    sweep_of,
    text_of,
)

DRAWN = {"lr": {"loguniform": [0.01, 1.0]}}
INTERVAL = 300
STOP = 3000


@dataclass
class Diary:
    """What trials reported: the place in the order of all reports, and the value, by trial and step."""

    reward: Reward
    entries: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    count: int = 0

    def __call__(self, trial: Trial, steps: int) -> float | None:
        """Report; what a trial does again replaces what it did before."""
        value = self.reward(trial, steps)
        self.count += 1
        self.entries[trial.name, steps] = self.count, math.nan if value is None else value
        return value

    def at(self, steps: int) -> dict[str, tuple[int, float]]:
        return {name: entry for (name, step), entry in self.entries.items() if step == steps}


def rising(trial: Trial, steps: int) -> float:
    """Return a reward that rises with time by far more than trials differ."""
    return steps / 10 + 20 * trial.experiment.config.lr + derive_seed(7, trial.name, steps) % 1000 / 1000


def noisy(trial: Trial, steps: int) -> float:
    return derive_seed(9, trial.name, steps) % 7


def failing(trial: Trial, steps: int) -> float:
    return math.nan if trial.index in (1, 4) and steps >= 700 * trial.index else rising(trial, steps)


class Uneven(World):
    """Some trials are slower than others."""

    rounds = 0

    def _report(self, trial: Trial, before: dict[str, Any]) -> None:
        self.rounds += 1
        if derive_seed(3, self.rounds, trial.name) % 100 >= trial.index * 4:
            super()._report(trial, before)


class Pruning(World):
    """Trials keep the best of their checkpoints, and the newest."""

    def _saved(self, *arguments: Any) -> tuple[Path | None, bool]:
        saved, is_milestone = super()._saved(*arguments)
        if saved is not None:
            keep_best(saved.parent, 1, "episode_reward_mean")
        return saved, is_milestone


def population(
    folder: Path, reward: Reward, capacity: int, world: type[World] = World, size: int = 10, **pbt: Any
) -> Simulation:
    search = {"scheduler": "pbt", "num_samples": size, "pbt": {"perturbation_interval": INTERVAL, **pbt}}
    sweep = sweep_of(folder, DRAWN, search, stop={"timesteps_total": STOP})
    return simulated(sweep, folder, reward, capacity, world)


def expected(values: dict[str, float], fraction: float) -> Iterator[tuple[str, set[str]]]:
    """Yield each trial that exploits, and those that it may copy, by the values of one milestone.

    The quantile is that of Tune: the number of trials times the fraction, rounded up; half of them at most.
    """
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    size = math.ceil(len(known) * fraction)
    if size > len(known) / 2:
        size = len(known) // 2

    def place(name: str) -> int:
        return sum((value, other) < (known[name], name) for other, value in known.items())

    for name in known:
        better = {other for other in known if place(other) >= len(known) - size and known[other] > known[name]}
        if place(name) < size and better:
            yield name, better


def assert_is_as_expected(simulation: Simulation, diary: Diary, fraction: float) -> tuple[int, int]:
    """Compare all exploits with the reference; return how many happened, and how many could have."""
    exploits = {(each["trial"], int(each["time"])): each for each in simulation.saved["exploits"]}
    assert len(exploits) == len(simulation.saved["exploits"])
    possible = set()
    for steps in range(INTERVAL, STOP, INTERVAL):
        entries = diary.at(steps)
        all_there = max(place for place, _ in entries.values())
        for name, donors in expected({name: value for name, (_, value) in entries.items()}, fraction):
            possible.add((name, steps))
            if (name, steps) not in exploits:
                before_last, _ = diary.entries[name, STOP - ROW_STEPS]
                assert before_last < all_there, "only one whose next row is its last does not exploit"
                continue
            exploit = exploits[name, steps]
            assert exploit["donor"] in donors
            assert exploit["value"] == entries[name][1]
            assert exploit["donor_value"] == entries[exploit["donor"]][1]
    assert exploits.keys() <= possible
    return len(exploits), len(possible)


@pytest.mark.key("search.pbt.synch", "search.pbt.quantile_fraction")
@pytest.mark.parametrize("capacity", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 4)), 10])
@pytest.mark.parametrize("synch", [True, False])
@pytest.mark.parametrize(("world", "reward", "fraction"), [(World, rising, 0.25), (Uneven, noisy, 0.5)])
def test_population_exploits_as_a_reference_at_equal_milestones(
    capacity: int, synch: bool, world: type[World], reward: Reward, fraction: float, tmp_path: Path
) -> None:
    diary = Diary(reward)
    simulation = population(tmp_path, diary, capacity, world, quantile_fraction=fraction, synch=synch)
    assert set(simulation.ends.values()) == {(Status.TERMINATED, STOP)}
    happened, possible = assert_is_as_expected(simulation, diary, fraction)
    if reward is rising:
        assert possible == 27
    if synch or capacity == 1:
        assert happened == possible
    assert happened >= 0.7 * possible


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_small_populations_exploit_as_the_reference(size: int, tmp_path: Path) -> None:
    diary = Diary(rising)
    simulation = population(tmp_path, diary, 2, size=size, synch=True)
    happened, possible = assert_is_as_expected(simulation, diary, 0.25)
    assert happened == possible == 9 * quantile_size(size, 0.25)


@pytest.mark.parametrize("capacity", [2, 10])
def test_population_continues_without_members_that_fail(capacity: int, tmp_path: Path) -> None:
    diary = Diary(failing)
    simulation = population(tmp_path, diary, capacity, synch=True)
    assert sorted(simulation.ends.values())[:2] == [(Status.ERROR, 700), (Status.ERROR, 2800)]
    happened, possible = assert_is_as_expected(simulation, diary, 0.25)
    assert happened == possible >= 22
    dead = {name for name, (status, _) in simulation.ends.items() if status is Status.ERROR}
    late = [each for each in simulation.saved["exploits"] if each["time"] > 700]
    assert len(dead) == 2
    assert not any(each["donor"].startswith("00001") for each in late)


def test_invalid_member_does_not_hold_up_the_population(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"train_batch_size": {"choice": [8, 16, 32]}, "lr": {"loguniform": [0.01, 1.0]}}
    search = {"scheduler": "pbt", "num_samples": 6, "pbt": {"perturbation_interval": INTERVAL, "synch": True}}
    sweep = sweep_of(tmp_path, config, search, stop={"timesteps_total": STOP})
    made = Sweep.trials

    def refuse_one(sweep: Sweep, number: int, point: Point) -> tuple[Trial, ...]:
        if number == 2:  # as where a searched key does not fit the others
            raise ConfigError([Problem("sweep.yaml:1:1", "it does not fit")])
        return made(sweep, number, point)

    monkeypatch.setattr(Sweep, "trials", refuse_one)
    simulation = simulated(sweep, tmp_path, rising)
    assert len(simulation.ends) == 5
    assert len(simulation.saved["exploits"]) == 9 * quantile_size(5, 0.25)


@pytest.mark.key("search.pbt.synch")
@pytest.mark.parametrize("capacity", [1, 3, 10])
def test_synchronous_population_waits_at_each_milestone(capacity: int, tmp_path: Path) -> None:
    diary = Diary(rising)
    population(tmp_path, diary, capacity, Uneven, synch=True)
    for steps in range(INTERVAL, STOP, INTERVAL):
        last_there = max(place for place, _ in diary.at(steps).values())
        first_after = min(place for place, _ in diary.at(steps + 100).values())
        assert last_there < first_after


def test_synchronous_population_does_not_depend_on_the_order_of_reports(tmp_path: Path) -> None:
    exploits = []
    for number, (capacity, world) in enumerate([(1, World), (3, Uneven), (10, World)]):
        (tmp_path / str(number)).mkdir()
        simulation = population(tmp_path / str(number), rising, capacity, world, synch=True)
        exploits.append(sorted(simulation.saved["exploits"], key=lambda each: (each["time"], each["trial"])))
    assert exploits[0] == exploits[1] == exploits[2]


@pytest.mark.parametrize("synch", [True, False])
def test_paused_trial_continues_from_the_donor_with_changed_keys(synch: bool, tmp_path: Path) -> None:
    simulation = population(tmp_path, rising, capacity=1, synch=synch)
    exploits = {each["trial"]: each for each in simulation.saved["exploits"]}
    varied = {
        trial["name"]: trial["varied"] for trial in json.loads((simulation.path / "run.json").read_text())["trials"]
    }
    assert len(exploits) > 3
    for name, last in exploits.items():
        assert varied[name] == last["after"], "the keys of its last exploit"
        checkpoints = list_checkpoints(simulation.path / name)
        trained_by = {read_checkpoint(path).state["trained_by"] for path in checkpoints}
        assert last["donor"] in trained_by
        lines = (simulation.path / name / "result.json").read_text().splitlines()
        steps = [json.loads(line)["timesteps_total"] for line in lines]
        assert steps == sorted(set(steps))


@pytest.mark.parametrize("synch", [True, False])
def test_population_copies_the_newest_checkpoint_where_that_of_the_milestone_is_gone(
    synch: bool, tmp_path: Path
) -> None:
    simulation = population(tmp_path, rising, 4, Pruning, synch=synch)
    assert len(simulation.saved["exploits"]) >= (27 if synch else 15)
    assert not any("copies no other" in note for note in simulation.search.drain_notes())
    assert all(newest_checkpoint(simulation.path / name) is not None for name in simulation.ends)


@pytest.mark.parametrize("synch", [True, False])
def test_trials_continue_where_nothing_can_be_copied(
    synch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*paths: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr("rlexp.search.population.copy_checkpoint", fails)
    simulation = population(tmp_path, rising, 3, synch=synch)
    assert set(simulation.ends.values()) == {(Status.TERMINATED, STOP)}
    assert simulation.saved["exploits"] == []
    assert sum("copies no other trial: no space left" in note for note in simulation.search.drain_notes()) >= 9


@pytest.mark.parametrize(("capacity", "fraction"), [(1, 0.25), (2, 0.5), pytest.param(4, 0.25, marks=pytest.mark.slow)])
def test_resumed_synchronous_population_ends_like_one_that_was_not_killed(
    capacity: int, fraction: float, tmp_path: Path
) -> None:
    options = {"perturbation_interval": 200, "synch": True, "quantile_fraction": fraction}
    text = text_of(DRAWN, {"scheduler": "pbt", "num_samples": 4, "pbt": options})
    rehearsals = Rehearsals(tmp_path, rising, capacity)
    copies = Copies(tmp_path / "copies", stride=23, offset=capacity)
    whole = rehearsals.begin(text, copies.take)
    assert len(saved(whole)["exploits"]) == 4 * quantile_size(4, fraction)
    assert len(copies.paths) > 10
    for path in copies.paths:
        rehearsals.resume(path)
        assert in_order(conclusion(path)) == in_order(conclusion(whole))
        for trial, lines in rows(path).items():
            missing = len(rows(whole)[trial]) - len(lines)
            assert missing in (0, 1), "the kill came between an exploit and the row before it"
        carried_out = [event["exploit"] for event in journal(path) if event["event"] == "took_over"]
        assert len(carried_out) == len(saved(path)["exploits"]), "none is carried out twice"


def in_order(content: dict[str, Any]) -> dict[str, Any]:
    """Return what a sweep says at its end without the order in which paused trials exploited."""
    content["sweep"]["exploits"].sort(key=lambda each: (each["time"], each["trial"]))
    return content


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
    "importance_weight_normalization": "batch",
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
    "tau": 0.5,
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
"""Another value than the default, or that of the lab's agents, of every key below."""
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
    "action_mask",
    *("distribution", "v_min", "v_max", "board", "env_wrappers", "callbacks"),
}
"""Keys that are not tried here."""
EMPTYING = {"buffer_size", "prioritized_replay", "prioritized_replay_alpha", "checkpoint_replay"}


def restored_there_and_back(run: str, changed: dict[str, Any], folder: Path) -> set[str]:
    """Return what trials find that continue from a checkpoint of one without the changed keys, and the other way."""
    found = set()
    for name, before, after in (("there", {}, changed), ("back", changed, {})):
        (folder / name).mkdir()
        found.add(restored_as(run, before, after, folder / name))
    return found


def restored_as(run: str, before: dict[str, Any], after: dict[str, Any], folder: Path) -> str:
    """Return what a trial finds that continues with the keys ``after`` from a checkpoint of one with ``before``."""
    make = MAKERS[run]
    size = {"num_envs_per_worker": 1, "timesteps_per_iteration": 60}
    donor = make(COUNTING_ENV, **(size | before))
    donor.train()
    path = donor.save(folder / "checkpoint_000001", {})
    donor.stop()
    try:
        copy = make(COUNTING_ENV, checkpoint=read_checkpoint(path), **(size | after))
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


ALONE = [key for key in OTHERS if key in ApexConfig.KEPT_BY_PBT]
NOISE = {key: OTHERS[key] for key in ("parameter_noise", "parameter_noise_initial_stddev")}
"""It does not go with soft Q."""
TOGETHER = {key: value for key, value in OTHERS.items() if key not in {*ALONE, *NOISE}}


@pytest.mark.key("search.scheduler")
@pytest.mark.parametrize("key", ALONE)
def test_keys_that_a_population_does_not_change_empty_replay_or_are_refused(key: str, tmp_path: Path) -> None:
    found = restored_there_and_back("APEX" if key == "optimizer" else "DQN", {key: OTHERS[key]}, tmp_path)
    if key in EMPTYING:
        assert "empty" in found, "it need not be refused"
    assert found != {"full"} or key == "observation_filter"


@pytest.mark.key("search.scheduler")
@pytest.mark.parametrize("changed", [TOGETHER, NOISE], ids=["others", "noise"])
def test_searched_keys_of_a_population_keep_replay(changed: dict[str, Any], tmp_path: Path) -> None:
    assert restored_there_and_back("DQN", changed, tmp_path) == {"full"}


@pytest.mark.parametrize("key", [*sorted(EMPTYING), "discretize_actions", "distribution", "v_max"])
def test_keys_that_do_not_fit_a_copied_checkpoint_are_refused(key: str, tmp_path: Path) -> None:
    values = {"prioritized_replay": "[true, false]", "checkpoint_replay": "[true, false]"}
    values |= {"prioritized_replay_alpha": "[0.4, 0.6]", "buffer_size": "[2000, 3000]"}
    values |= {"distribution": "[categorical, quantiles]"}
    beside = "    num_atoms: 51\n" if key in {"distribution", "v_max"} else ""  # with one atom they have no effect
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "small:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 1000}\n  search: {scheduler: pbt}\n"
        f"  config:\n    {key}: {{choice: {values.get(key, '[3, 5]')}}}\n{beside}"
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
