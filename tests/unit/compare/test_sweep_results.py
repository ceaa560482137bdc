"""What is read from ``sweep.json``: outcomes, values and domains, also where the file is incomplete or wrong.

Importance: equal to Optuna's own on a study made by hand, and honest about early ends, chance and missing values.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from rlexp.compare.importance import Importance, importance_of
from rlexp.compare.sweep import RecordedOutcome, SweepResults, read_sweep_results
from rlexp.config.domains import Listed, Range
from rlexp.runs.record import Status
from rlexp.search.ranking import EndComparison
from tests.lab.run_folders import configuration, ended_early, write_sweep

HIDDENS = ([32], [64, 64])
DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "n_step": IntDistribution(1, 7),
    "hiddens": CategoricalDistribution((0, 1)),
}


def points(number: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"lr": 10 ** rng.uniform(-5, -1), "n_step": int(rng.integers(1, 8)), "hiddens": HIDDENS[rng.integers(2)]}
        for _ in range(number)
    ]


def by_lr(point: dict[str, Any]) -> float:
    return -abs(math.log10(point["lr"]) + 3)


def ranked(scored: list[tuple[dict[str, Any], float]]) -> list[dict[str, Any]]:
    best_first = sorted(enumerate(scored), key=lambda pair: -pair[1][1])
    return [configuration(number, point, score) for number, (point, score) in best_first]


def importance(path: Path, configurations: list[dict[str, Any]], **changes: Any) -> Importance:
    results = read_sweep_results(write_sweep(path, configurations, **changes))
    assert results is not None
    return importance_of(results)


def of_optuna(scored: list[tuple[dict[str, Any], float]], share_of_best: float) -> dict[str, float]:
    study = optuna.create_study(direction="maximize")
    for point, score in scored:
        params = point | {"hiddens": HIDDENS.index(point["hiddens"])}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=DISTRIBUTIONS, value=score))
    names = inspect.signature(PedAnovaImportanceEvaluator).parameters
    name = "target_quantile" if "target_quantile" in names else "baseline_quantile"
    options: dict[str, Any] = {name: share_of_best}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is experimental in some versions
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(**options))


@pytest.mark.parametrize(("number", "best"), [(40, 8), (80, 16), (10, 5)])
def test_shares_equal_those_of_optuna(tmp_path: Path, number: int, best: int) -> None:
    scored = [(point, by_lr(point) + 0.1 * point["n_step"]) for point in points(number)]
    found = importance(tmp_path, ranked(scored))
    assert (found.configurations, found.best, found.problem) == (number, best, None)
    expected = of_optuna(scored, best / number)
    assert {each.key: each.share for each in found.keys} == pytest.approx(expected, abs=1e-12)
    assert [each.key for each in found.keys] == list(expected), "the most important first"


def test_lower_is_better_keeps_order_of_ranking(tmp_path: Path) -> None:
    scored = [(point, by_lr(point)) for point in points(40)]
    configurations = [{**each, "score": -each["score"]} for each in ranked(scored)]
    found = importance(tmp_path, configurations, search={"mode": "min"})
    assert {each.key: each.share for each in found.keys} == pytest.approx(of_optuna(scored, 8 / 40), abs=1e-12)


def test_scores_of_noise_give_no_significant_key(tmp_path: Path) -> None:
    significant, largest = 0, []
    for seed in range(10):
        noise = np.random.default_rng(100 + seed).normal(size=30)
        found = importance(tmp_path, ranked(list(zip(points(30, seed), noise.tolist(), strict=True))))
        significant += sum(each.is_significant for each in found.keys)
        largest.append(found.keys[0].share)
    assert significant <= 4, "of 30 keys; 1.5 are expected"
    assert np.mean(largest) > 0.5, "shares alone would name a key as the most important one of each sweep"


def test_configurations_that_ended_early_count(tmp_path: Path) -> None:
    good = [(point, float(point["n_step"])) for point in points(60) if abs(math.log10(point["lr"]) + 3) < 0.5]
    bad = [point for point in points(60) if abs(math.log10(point["lr"]) + 3) >= 0.5]
    completed = ranked(good)
    early = [ended_early(100 + number, point, 100, 1000.0 - number) for number, point in enumerate(bad)]
    found = {each.key: each for each in importance(tmp_path, completed + early).keys}
    assert found["lr"].is_significant, "its bad values ended early"
    alone = {each.key: each for each in importance(tmp_path, completed).keys}
    assert not alone["lr"].is_significant, "those that completed have good values only"
    notes = " ".join(importance(tmp_path, completed + early).notes)
    assert f"The 60 include {len(bad)} that ended early" in notes


def test_unfinished_are_left_out_and_failed_count(tmp_path: Path) -> None:
    scored = ranked([(point, by_lr(point)) for point in points(20)])
    others = points(7, seed=5)
    unfinished = [configuration(50 + n, point, 1e9, status=Status.RUNNING) for n, point in enumerate(others[:3])]
    failed = [configuration(60 + n, point, None) for n, point in enumerate(others[3:])]
    found = importance(tmp_path, unfinished + scored + failed)
    assert (found.configurations, found.best) == (24, 5)
    notes = " ".join(found.notes)
    assert "4 that failed" in notes
    assert "3 unfinished are left out." in notes


def test_same_sweep_has_same_importance(tmp_path: Path) -> None:
    configurations = ranked([(point, by_lr(point)) for point in points(20)])
    assert importance(tmp_path, configurations) == importance(tmp_path, configurations)


@pytest.mark.parametrize(
    ("configurations", "problem"),
    [
        (ranked([(point, by_lr(point)) for point in points(7)]), "8 configurations that ended, and there are 7"),
        (
            [configuration(n, point, 3.0) for n, point in enumerate(points(20))],
            "better than the worst, and there are 0",
        ),
        (
            [
                *ranked([(point, by_lr(point)) for point in points(3)]),
                *(configuration(9 + n, point, None) for n, point in enumerate(points(10))),
            ],
            "better than the worst, and there are 3",
        ),
    ],
)
def test_too_little_to_compare_is_said(tmp_path: Path, configurations: list[dict[str, Any]], problem: str) -> None:
    found = importance(tmp_path, configurations)
    assert found.keys == ()
    assert problem in str(found.problem)


def test_pbt_has_no_importance(tmp_path: Path) -> None:
    configurations = ranked([(point, by_lr(point)) for point in points(20)])
    found = importance(tmp_path, configurations, search={"scheduler": "pbt"})
    assert found.keys == ()
    assert "pbt changes the keys of a trial while it trains" in str(found.problem)


def test_missing_optuna_is_said_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    found = importance(tmp_path, ranked([(point, by_lr(point)) for point in points(20)]))
    assert found.keys == ()
    assert "pip install 'rlexp[sweep]'" in str(found.problem)


def test_conditional_keys_are_assessed_or_named(tmp_path: Path) -> None:
    scored = []
    for point in points(40):
        score = by_lr(point)
        if point.pop("hiddens") == [32]:
            point["tau"] = point["n_step"] / 10
        scored.append((point, score))
    found = importance(tmp_path, ranked(scored))
    assert found.problem is None
    keys = {each.key for each in found.keys}
    assert {"lr", "n_step"} <= keys
    assert "tau" in keys or "only some configurations have them: tau" in " ".join(found.notes)
    assert sum(each.share for each in found.keys) == pytest.approx(1)


def test_constant_key_and_nested_lists(tmp_path: Path) -> None:
    filters = ([[16, [8, 8], 4]], [[32, [4, 4], 2], [64, [3, 3], 1]])
    scored = []
    for number, point in enumerate(points(40)):
        point |= {"gamma": 0.99, "conv_filters": filters[number % 2]}
        scored.append((point, float(number % 2) + 0.001 * number))
    found = {each.key: each for each in importance(tmp_path, ranked(scored)).keys}
    assert found["conv_filters"].is_significant
    assert max(found.values(), key=lambda each: each.share).key == "conv_filters"
    assert found["gamma"].share == 0
    assert not found["gamma"].is_significant


POINT = {"lr": 0.001, "n_step": 3, "hiddens": [32]}


def read(path: Path, configurations: list[Any], **changes: Any) -> SweepResults:
    results = read_sweep_results(write_sweep(path, configurations, **changes))
    assert results is not None
    return results


def test_outcomes_and_values(tmp_path: Path) -> None:
    results = read(
        tmp_path,
        [
            configuration(4, POINT, 9.5),
            configuration(5, POINT, 3.0, status=Status.STOPPED),
            ended_early(1, POINT, 100, 17.0),
            configuration(2, POINT, 6.0, status=Status.PRUNED),
            configuration(3, POINT, None, status=Status.TERMINATED),
            configuration(0, POINT, None),
        ],
    )
    assert [(each.number, each.outcome, each.score, each.value) for each in results.configurations] == [
        (4, RecordedOutcome.COMPLETED, 9.5, 9.5),
        (5, RecordedOutcome.UNFINISHED, None, 3.0),
        (1, RecordedOutcome.ENDED_EARLY, None, 17.0),
        (2, RecordedOutcome.ENDED_EARLY, None, 6.0),
        (3, RecordedOutcome.UNFINISHED, None, None),
        (0, RecordedOutcome.FAILED, None, None),
    ]
    assert results.best is results.configurations[0]
    assert results.configurations[2].ended_early == EndComparison(100, None, "timesteps_total", 17.0, None)


def test_domains_come_from_space(tmp_path: Path) -> None:
    domains = read(tmp_path, [configuration(0, POINT, 1.0)]).domains
    assert list(domains) == ["lr", "n_step", "hiddens"]
    assert domains["lr"] == Range("loguniform", (1e-5, 1e-1), 1e-5, 1e-1, is_log=True)
    assert domains["n_step"] == Range("randint", (1, 8), 1, 7, step=1)
    assert domains["hiddens"] == Listed("choice", [[32]]), "only what occurs"


@pytest.mark.parametrize(
    "space",
    [
        {},
        None,
        [1],
        {"lr": 3},
        {"lr": {"loguniform": [1]}},
        {"lr": {"sideways": [1, 2]}},
        {"lr": {"uniform": [0, 1], "x": 2}},
    ],
)
def test_domains_without_usable_space_come_from_values(tmp_path: Path, space: Any) -> None:
    points: list[dict[str, Any]] = [{"lr": 0.5}, {"lr": 2}]
    results = read(tmp_path, [configuration(n, point, 1.0) for n, point in enumerate(points)], space=space)
    domain = results.domains["lr"]
    assert isinstance(domain, Range)
    assert (domain.low, domain.high, domain.is_log) == (0.5, 2, False)


def test_range_includes_values_outside(tmp_path: Path) -> None:
    results = read(tmp_path, [configuration(0, {"lr": 0.5, "n_step": 9}, 1.0)])
    lr, n_step = results.domains["lr"], results.domains["n_step"]
    assert isinstance(lr, Range)
    assert isinstance(n_step, Range)
    assert (lr.low, lr.high, lr.is_log) == (1e-5, 0.5, True)
    assert (n_step.low, n_step.high) == (1, 9)


def test_values_that_are_no_numbers_become_a_list(tmp_path: Path) -> None:
    points: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": None}, {"lr": True}, {"lr": "auto"}, {"lr": 0.1}]
    results = read(tmp_path, [configuration(n, point, 1.0) for n, point in enumerate(points)])
    assert results.domains["lr"] == Listed("choice", [0.1, None, True, "auto"])


def test_grid_and_normal_domains(tmp_path: Path) -> None:
    space = {"a": {"grid_search": [2, 1, 3]}, "b": {"randn": [0.0, 1.0]}}
    points: list[dict[str, Any]] = [{"a": 1, "b": 0.5}, {"a": 2, "b": -1.0}]
    domains = read(tmp_path, [configuration(n, p, 1.0) for n, p in enumerate(points)], space=space).domains
    assert domains["a"] == Listed("choice", [2, 1])
    assert domains["b"] == Range("randn", (0.0, 1.0), -4.0, 4.0)


def test_keys_that_some_configurations_lack(tmp_path: Path) -> None:
    space = {"kind": {"choice": ["a", "b"]}, "tau": {"uniform": [0, 1]}, "never": {"uniform": [0, 1]}}
    points: list[dict[str, Any]] = [{"kind": "a"}, {"kind": "b", "tau": 0.5}]
    results = read(tmp_path, [configuration(n, p, 1.0) for n, p in enumerate(points)], space=space)
    assert list(results.domains) == ["kind", "tau"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"configurations": 3}', '{"configurations": [3, {"point": 1}]}', "\x00"]
)
def test_no_results_without_configurations(tmp_path: Path, content: str) -> None:
    (tmp_path / "sweep.json").write_text(content)
    assert read_sweep_results(tmp_path) is None


def test_no_results_without_a_sweep(tmp_path: Path) -> None:
    assert read_sweep_results(tmp_path) is None
    assert read_sweep_results(tmp_path / "nowhere") is None


def test_facts_of_summary(tmp_path: Path) -> None:
    summary = {
        "configurations": 2,
        "env_steps": 1000,
        "env_steps_saved": 3000,
        "time_s": 60.0,
        "time_saved_s": None,
        "best_found_after_s": 30.0,
    }
    results = read(tmp_path, [configuration(0, POINT, 1.0), ended_early(1, POINT, 100, 2.0)], summary=summary)
    assert list(results.facts()) == [
        "2 configurations: 1 completed, 1 ended early.",
        "1,000 env steps; about 3,000 (75 % of all) saved by ending configurations early.",
        "0:01:00 of training in all trials.",
        "The best was found after 0:00:30.",
    ]


@pytest.mark.parametrize("summary", [None, [], {"env_steps": "many", "time_s": None}])
def test_facts_without_summary(tmp_path: Path, summary: Any) -> None:
    results = read(tmp_path, [configuration(0, POINT, 1.0)], summary=summary)
    assert list(results.facts()) == ["1 configuration: 1 completed."]
