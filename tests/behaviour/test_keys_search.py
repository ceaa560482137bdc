"""The keys under ``search:``; each test fails where its key is accepted and ignored."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.config.keys.trial import Trial
from rlexp.metrics import interquartile_mean
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.record import Status
from rlexp.search.search import Search
from rlexp.search.searchers import OptunaSearcher, PlannedSearcher, make_searcher
from rlexp.tuning.run import capacity
from tests.lab.sweeps import Simulation, simulated, sweep_of

RATES = {"lr": {"grid_search": [0.1, 0.2, 0.3, 0.4]}}
DRAWN = {"lr": {"uniform": [0.1, 1.0]}}


def rate(trial: Trial, steps: int) -> float:
    """Reward a trial by its learning rate."""
    return trial.experiment.config.lr * 100


def growing(trial: Trial, steps: int) -> float:
    return rate(trial, steps) * steps


def ended_at(simulation: Simulation) -> list[int]:
    return [simulation.ends[name][1] for name in sorted(simulation.ends)]


@pytest.mark.key("search.metric", "search.mode")
@pytest.mark.parametrize(
    ("search", "best"),
    [
        ({}, 0.4),
        ({"mode": "min"}, 0.1),
        ({"metric": "episode_len_mean"}, 0.1),
        ({"metric": "episode_len_mean", "mode": "min"}, 0.4),
    ],
)
def test_best_configuration_is_by_metric_and_mode(search: dict[str, Any], best: float, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, RATES, search), tmp_path, rate)
    first = simulation.search.standings.best()
    assert first is not None
    assert first.varied == {"lr": best}
    assert f"lr: {best}" in (simulation.path / "best.yaml").read_text()


@pytest.mark.key("search.searcher")
@pytest.mark.parametrize(
    ("searcher", "config", "count"), [(None, RATES, 4), ("grid", RATES, 4), (None, DRAWN, 5), ("random", RATES, 4)]
)
def test_searcher_gives_the_configurations(
    searcher: str | None, config: dict[str, Any], count: int, tmp_path: Path
) -> None:
    search = {"searcher": searcher} | ({} if config is RATES and searcher != "random" else {"num_samples": 5})
    sweep = sweep_of(tmp_path, config, search)
    assert sweep.number_of_configurations == count
    assert isinstance(make_searcher(sweep), PlannedSearcher)
    assert len(simulated(sweep, tmp_path, rate).ends) == count


@pytest.mark.key("search.optuna.sampler", "search.optuna.sampler_kwargs")
@pytest.mark.parametrize("optuna", [{"sampler": "nsgaii"}, {"sampler_kwargs": {"n_ei_candidates": 2}}])
def test_sampler_chooses_the_points(optuna: dict[str, Any], tmp_path: Path) -> None:
    def rates(options: dict[str, Any]) -> list[float]:
        search = {"searcher": "optuna", "num_samples": 15, "optuna": {"n_startup_trials": 5, **options}}
        simulation = simulated(sweep_of(tmp_path, DRAWN, search), tmp_path, rate, capacity=1)
        return [each.trial.varied["lr"] for each in simulation.search.standings.trials()]

    assert rates(optuna) == rates(optuna) != rates({})


@pytest.mark.key("search.searcher", "search.optuna.n_startup_trials", "search.num_samples")
def test_optuna_learns_after_its_startup_trials(tmp_path: Path) -> None:
    def drawn(startup: int) -> list[float]:
        search = {"searcher": "optuna", "num_samples": 30, "optuna": {"n_startup_trials": startup}}
        sweep = sweep_of(tmp_path, DRAWN, search)
        assert isinstance(make_searcher(sweep), OptunaSearcher)
        simulation = simulated(sweep, tmp_path, rate, capacity=1)
        trials = simulation.search.standings.trials()
        return [trial.trial.experiment.config.lr for trial in trials]

    learning, guessing = drawn(5), drawn(30)
    assert len(learning) == len(guessing) == 30
    assert learning[:5] == guessing[:5]
    assert sum(learning[15:]) / 15 > sum(guessing[15:]) / 15 + 0.15
    assert learning == drawn(5), "the same seed makes the same choices"


@pytest.mark.key("search.num_seeds")
def test_each_configuration_is_tried_with_several_seeds(tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, RATES, {"num_seeds": 3}), tmp_path, rate)
    standings = simulation.search.standings.ranked()
    assert [len(standing.trials) for standing in standings] == [3] * 4
    seeds = [[trial.trial.experiment.config.seed for trial in standing.trials] for standing in standings]
    assert seeds == [seeds[0]] * 4, "configurations are compared on the same seeds"
    assert seeds[0][0] == 3
    assert len(set(seeds[0])) == 3


@pytest.mark.key("search.rank_by")
@pytest.mark.parametrize("rank_by", ["mean", "iqm"])
def test_rank_by_combines_the_scores_of_seeds(rank_by: str, tmp_path: Path) -> None:
    def reward(trial: Trial, steps: int) -> float:
        return (1.0, 2.0, 4.0, 100.0)[trial.sample] * trial.experiment.config.lr

    search = {"num_seeds": 4, "rank_by": rank_by}
    best = simulated(sweep_of(tmp_path, RATES, search), tmp_path, reward).search.standings.best()
    assert best is not None
    assert best.score is not None
    import numpy as np

    scores = np.array([0.4, 0.8, 1.6, 40.0])
    assert best.score == pytest.approx(float(interquartile_mean(scores) if rank_by == "iqm" else scores.mean()))
    assert best.interval is not None
    assert best.interval[0] < best.score < best.interval[1]


@pytest.mark.key("search.max_concurrent")
@pytest.mark.parametrize("most", [1, 3])
def test_max_concurrent_limits_running_trials(most: int, tmp_path: Path) -> None:
    assert simulated(sweep_of(tmp_path, RATES, {"max_concurrent": most}), tmp_path, rate).most_running == most


@pytest.mark.parametrize(("most", "expected"), [(None, 4), (2, 2), (16, 4)])
def test_max_concurrent_above_the_room_of_the_machine_has_no_effect(
    most: int | None, expected: int, tmp_path: Path
) -> None:
    cluster = Cluster.of(replace(this_machine(), cpus=4, gpus=0))
    assert capacity(sweep_of(tmp_path, RATES, {"max_concurrent": most}), cluster) == expected


@pytest.mark.key("search.time_budget_s")
def test_no_trial_begins_after_the_time_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time()

    def reward(trial: Trial, steps: int) -> float:
        nonlocal clock
        clock += 1.0
        return rate(trial, steps)

    monkeypatch.setattr(time, "time", lambda: clock)
    simulation = simulated(sweep_of(tmp_path, RATES, {"time_budget_s": 15.0}), tmp_path, reward, capacity=1)
    assert next(iter(simulation.ends.values())) == (Status.TERMINATED, 1000)
    assert len(simulation.ends) == 2, "the third would have begun after 20 s"
    assert simulation.search.deadline_s == pytest.approx(clock - 20.0 + 15.0)


@pytest.mark.key("search.hang_timeout_s")
def test_hang_timeout_is_given_to_the_runner(tmp_path: Path) -> None:
    assert simulated(sweep_of(tmp_path, RATES), tmp_path, rate).search.hang_timeout_s == 300
    search = {"hang_timeout_s": 20}
    assert simulated(sweep_of(tmp_path, RATES, search), tmp_path, rate).search.hang_timeout_s == 20


@pytest.mark.key("search.scheduler", "search.asha.grace_period", "search.asha.reduction_factor")
@pytest.mark.parametrize(
    ("search", "ends"),
    [
        ({"scheduler": "fifo"}, [1000] * 4),
        ({"scheduler": "asha", "asha": {"grace_period": 200, "reduction_factor": 1.5}}, [200, 200, 1000, 1000]),
        ({"scheduler": "asha", "asha": {"grace_period": 400, "reduction_factor": 1.5}}, [400, 400, 1000, 1000]),
        ({"scheduler": "asha", "asha": {"grace_period": 200, "reduction_factor": 4}}, [200, 200, 200, 1000]),
        ({"scheduler": "asha", "asha": {"grace_period": 300, "reduction_factor": 4}}, [300, 300, 300, 1000]),
    ],
)
def test_asha_stops_the_worst_at_each_rung(search: dict[str, Any], ends: list[int], tmp_path: Path) -> None:
    rates = {"lr": {"grid_search": [0.4, 0.3, 0.2, 0.1]}}
    simulation = simulated(sweep_of(tmp_path, rates, search), tmp_path, rate, capacity=4)
    assert sorted(ended_at(simulation)) == ends
    assert simulation.ends[simulation.order[0]] == (Status.TERMINATED, 1000), "the best goes on"


@pytest.mark.key("search.asha.time_attr", "search.median.time_attr")
@pytest.mark.parametrize("scheduler", ["asha", "median"])
@pytest.mark.parametrize(("attribute", "grace", "end"), [("training_iteration", 3, 300), ("time_total_s", 5, 500)])
def test_time_attr_is_the_unit_of_time(scheduler: str, attribute: str, grace: int, end: int, tmp_path: Path) -> None:
    group = {"time_attr": attribute, "grace_period": grace}
    simulation = simulated(
        sweep_of(tmp_path, {"lr": {"grid_search": [0.4, 0.3, 0.2, 0.1]}}, {"scheduler": scheduler, scheduler: group}),
        tmp_path,
        rate,
        capacity=4,
    )
    assert min(ended_at(simulation)) == end


@pytest.mark.key("search.median.grace_period", "search.median.min_samples_required")
@pytest.mark.parametrize(
    ("group", "ends"),
    [
        ({"grace_period": 300}, [300, 1000, 1000, 1000]),
        ({"grace_period": 600}, [600, 1000, 1000, 1000]),
        ({"grace_period": 300, "min_samples_required": 4}, [1000] * 4),
    ],
)
def test_median_rule_stops_trials_below_the_median(group: dict[str, Any], ends: list[int], tmp_path: Path) -> None:
    rates = {"lr": {"grid_search": [0.4, 0.3, 0.2, 0.1]}}
    search = {"scheduler": "median", "median": group}
    assert sorted(ended_at(simulated(sweep_of(tmp_path, rates, search), tmp_path, rate, capacity=4))) == ends


def population(tmp_path: Path, capacity: int = 4, num_samples: int = 4, **pbt: Any) -> Simulation:
    search = {"scheduler": "pbt", "num_samples": num_samples, "pbt": {"perturbation_interval": 300, **pbt}}
    sweep = sweep_of(tmp_path, DRAWN, search, stop={"timesteps_total": 2000})
    return simulated(sweep, tmp_path, growing, capacity)


def rate_at_first(name: str) -> float:
    """Return the learning rate that a trial began with, which its name tells."""
    return float(name.rpartition("lr=")[2])


@pytest.mark.key("search.scheduler", "search.pbt.perturbation_factor", "search.pbt.resample_probability")
@pytest.mark.parametrize(("factor", "distance"), [(1.1, 0.09), (4.0, 0.45)])
def test_pbt_worst_trial_copies_the_best_with_changed_keys(factor: float, distance: float, tmp_path: Path) -> None:
    simulation = population(tmp_path, perturbation_factor=factor, resample_probability=0.0)
    first = simulation.saved["exploits"][0]
    assert first["donor_value"] > first["value"]
    donors = rate_at_first(first["donor"])
    assert abs(first["after"]["lr"] - donors) == pytest.approx(distance, rel=1e-2)
    assert first["before"]["lr"] < donors
    taken = simulation.path / first["trial"]
    trained_by = {read_checkpoint(path).state["trained_by"] for path in list_checkpoints(taken)}
    assert first["donor"] in trained_by, "its directory has the checkpoint that it went on from"


@pytest.mark.key("search.pbt.resample_probability")
def test_pbt_resamples_keys(tmp_path: Path) -> None:
    simulation = population(tmp_path, resample_probability=1.0, perturbation_factor=1.0001)
    first = simulation.saved["exploits"][0]
    assert abs(first["after"]["lr"] / rate_at_first(first["donor"]) - 1) > 0.01


@pytest.mark.key("search.pbt.perturbation_interval", "search.pbt.time_attr")
@pytest.mark.parametrize(
    ("pbt", "times"),
    [
        ({}, set(range(300, 2000, 300))),
        ({"perturbation_interval": 500}, {500, 1000, 1500}),
        ({"perturbation_interval": 4, "time_attr": "training_iteration"}, {4, 8, 12, 16}),
    ],
)
def test_pbt_compares_trials_every_interval(pbt: dict[str, Any], times: set[int], tmp_path: Path) -> None:
    exploits = population(tmp_path, **pbt).saved["exploits"]
    assert exploits
    assert {exploit["time"] for exploit in exploits} <= times


@pytest.mark.key("search.pbt.quantile_fraction")
def test_pbt_quantile_limits_exploits(tmp_path: Path) -> None:
    def takers(fraction: float) -> int:
        exploits = population(tmp_path, 8, 8, quantile_fraction=fraction).saved["exploits"]
        return sum(exploit["time"] == 600 for exploit in exploits)

    assert takers(0.125) <= 1 < takers(0.5) <= 4


def test_pbt_trials_take_turns_where_not_all_fit(tmp_path: Path) -> None:
    simulation = population(tmp_path, capacity=2)
    assert simulation.most_running == 2
    assert set(simulation.ends.values()) == {(Status.TERMINATED, 2000)}
    assert simulation.saved["exploits"]


def test_diverged_trial_ranks_last_and_the_sweep_continues(tmp_path: Path) -> None:
    def reward(trial: Trial, steps: int) -> float:
        return float("nan") if trial.experiment.config.lr == 0.4 and steps > 500 else rate(trial, steps)

    simulation = simulated(sweep_of(tmp_path, RATES), tmp_path, reward)
    ranked = simulation.search.standings.ranked()
    assert [standing.varied["lr"] for standing in ranked] == [0.3, 0.2, 0.1, 0.4]
    (failure,) = simulation.search.standings.failures()
    assert failure.error == "diverged: episode_reward_mean_all is nan after 600 env steps"
    assert simulation.search.conclude(Status.ERROR) is Status.ERROR
    table = (simulation.path / "trials.csv").read_text().splitlines()
    assert len(table) == 5
    assert "diverged" in table[-1]
    assert isinstance(simulation.search, Search)
