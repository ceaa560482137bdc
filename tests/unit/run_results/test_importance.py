"""Importance: equal to Optuna's own on a study made by hand, and honest about early ends, chance and missing values."""

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
from rlexp.compare.sweep import read_sweep_results
from rlexp.runs.record import Status
from tests.unit.run_results.sweep_folders import configuration, ended_early, write_sweep

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


def test_key_that_decides_is_significant(tmp_path: Path) -> None:
    first, *others = importance(tmp_path, ranked([(point, by_lr(point)) for point in points(60)])).keys
    assert first.key == "lr"
    assert first.share > 0.8
    assert first.is_significant
    assert not any(each.is_significant for each in others)


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
