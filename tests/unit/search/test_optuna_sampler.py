"""Samplers of Optuna: what is refused before a sweep begins, and that each of them suggests points."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.load import LoadOptions, load_plan
from rlexp.errors import ConfigError
from rlexp.search.optuna import make_sampler, require_sampler
from rlexp.search.searchers import OptunaSearcher
from rlexp.search.trial_source import Outcome, OutcomeStatus
from tests.behaviour.simulated_sweeps import sweep_of

SPACE = {"lr": {"loguniform": [1e-4, 1e-1]}, "n_step": {"randint": [1, 9]}, "hiddens": {"choice": [[8], [16]]}}
TEXT = """\
small:
  run: DQN
  env: CartPole-v1
  search:
    searcher: optuna
    optuna:
      sampler: {sampler}
      sampler_kwargs:
        {argument}
  config:
    lr: {{loguniform: [1e-4, 1e-1]}}
    double_q: {{choice: [true, false]}}
"""


def search_of(sampler: str, **options: Any) -> dict[str, Any]:
    return {"searcher": "optuna", "num_samples": 40, "optuna": {"sampler": sampler, **options}}


def points_of(searcher: OptunaSearcher, count: int) -> list[dict[str, Any]]:
    points = []
    for configuration in range(count):
        point = searcher.suggest(configuration)
        assert point is not None
        points.append(dict(point))
        searcher.record(configuration, Outcome(OutcomeStatus.FINISHED, -abs(point["lr"] - 0.01), 10))
    return points


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsgaii", "cmaes", "qmc", "gp"])
def test_each_sampler_suggests_points_of_its_own(sampler: str, tmp_path: Path) -> None:
    for package in {"cmaes": ["cmaes"], "qmc": ["scipy"], "gp": ["scipy"]}.get(sampler, []):
        pytest.importorskip(package)
    sweep = sweep_of(tmp_path, SPACE, search_of(sampler, n_startup_trials=4))
    require_sampler(sweep)
    points = points_of(OptunaSearcher(sweep), 12)
    assert points == points_of(OptunaSearcher(sweep), 12), "seeded"
    others = OptunaSearcher(sweep_of(tmp_path, SPACE, search_of("tpe" if sampler != "tpe" else "random")))
    assert points != points_of(others, 12)


def test_class_names_of_optuna_are_known(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SPACE, search_of("NSGAIISampler"))
    assert sweep.search.optuna.sampler == "nsgaii"


def refusal(tmp_path: Path, sampler: str, argument: str) -> tuple[int, str, str]:
    """Return line, message and hint of what is wrong."""
    file = tmp_path / "sweep.yaml"
    file.write_text(TEXT.format(sampler=sampler, argument=argument))
    with pytest.raises(ConfigError) as caught:
        require_sampler(load_plan([file], options=LoadOptions(is_sweep=True)).sweeps[0])
    (problem,) = caught.value.problems
    return int(problem.where.split(":")[1]), problem.message, problem.hint or ""


@pytest.mark.parametrize(
    ("sampler", "argument", "line", "said", "hint"),
    [
        ("tpe", "multivariat: true", 9, "multivariat is not an argument of TPESampler", "multivariate"),
        ("tpe", "n_ei_candidates: many", 9, "sampler_kwargs.n_ei_candidates is wrong, got", "integer"),
        ("tpe", "n_ei_candidates: true", 9, "sampler_kwargs.n_ei_candidates is wrong, got", "integer"),
        ("tpe", "gamma: 3", 9, "gamma is not an argument of TPESampler that a file can give", "multivariate"),
        ("tpe", "n_ei_candidates: -3", 8, "TPESampler refuses them: ", ""),
        ("nsgaii", "population_size: 1", 8, "NSGAIISampler refuses them: ValueError", ""),
        ("random", "multivariate: true", 9, "is not an argument of RandomSampler", "none"),
        ("tpe", "seed: 3", 9, "sampler_kwargs cannot have seed", "config.seed"),
        ("tpe", "n_startup_trials: 3", 9, "sampler_kwargs cannot have n_startup_trials", "beside"),
    ],
)
def test_wrong_arguments_are_refused_with_their_line(
    sampler: str, argument: str, line: int, said: str, hint: str, tmp_path: Path
) -> None:
    place, message, remedy = refusal(tmp_path, sampler, argument)
    assert place == line
    assert said in message
    assert hint in remedy


def test_missing_package_of_a_sampler_is_refused_with_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("cmaes", "scipy") else object())
    for sampler, package in (("cmaes", "cmaes"), ("gp", "scipy"), ("qmc", "scipy")):
        with pytest.raises(ConfigError, match=rf"sweep\.yaml:\d+:\d+  .*{sampler} needs {package}") as caught:
            require_sampler(sweep_of(tmp_path, SPACE, search_of(sampler)))
        assert caught.value.problems[0].hint == f"pip install {package}"


def test_cmaes_is_refused_where_it_would_draw_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    require_sampler(sweep_of(tmp_path, SPACE, search_of("cmaes")))
    with pytest.raises(ConfigError, match="needs two or more ranges of numbers, and small has 1"):
        require_sampler(sweep_of(tmp_path, {"lr": SPACE["lr"], "hiddens": SPACE["hiddens"]}, search_of("cmaes")))


def test_experimental_samplers_are_made_without_warnings(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SPACE, search_of("tpe", sampler_kwargs={"multivariate": True, "group": True}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_sampler(sweep)
        make_sampler(sweep.search.optuna, 0)
