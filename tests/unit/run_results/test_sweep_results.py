"""What is read from ``sweep.json``: outcomes, values and domains, also where the file is incomplete or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.sweep import Outcome, SweepResults, read_sweep_results
from rlexp.config.space.domains import Listed, Range
from rlexp.runs.record import Status
from tests.unit.run_results.sweep_folders import configuration, ended_early, write_sweep

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
        (4, Outcome.COMPLETED, 9.5, 9.5),
        (5, Outcome.UNFINISHED, None, 3.0),
        (1, Outcome.ENDED_EARLY, None, 17.0),
        (2, Outcome.ENDED_EARLY, None, 6.0),
        (3, Outcome.UNFINISHED, None, None),
        (0, Outcome.FAILED, None, None),
    ]
    assert results.best is results.configurations[0]
    assert results.configurations[2].ended_at == "100 timesteps_total"


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
