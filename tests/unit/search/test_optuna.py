"""Storages of Optuna: which are opened, which are refused, and that nothing in them is run or shown.

Samplers of Optuna: what is refused before a sweep begins, and that each of them suggests points.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest

from rlexp.config.load import LoadOptions, Plan, load_plan
from rlexp.errors import ConfigError, UsageError
from rlexp.search.optuna import make_sampler, open_storage, require_sampler
from rlexp.search.searchers import OptunaSearcher
from rlexp.search.shared_study import StudyMember, require_study
from rlexp.search.trial_source import Outcome, OutcomeStatus
from rlexp.terminal.checking import plan_as_json
from rlexp.text import masked, masked_command
from rlexp.tuning.run import begun_journal
from tests.lab.sweeps import sweep_of, text_of

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


STORED_SPACE = {"lr": {"loguniform": [0.01, 1.0]}}


def plan_of(tmp_path: Path, **optuna_options: Any) -> Plan:
    file = tmp_path / "sweep.yaml"
    file.write_text(text_of(STORED_SPACE, {"searcher": "optuna", "num_samples": 3, "optuna": optuna_options}))
    return load_plan([file], options=LoadOptions(is_sweep=True))


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"storage": "redis://host/0"}, "it begins with redis://", "sqlite:///study.db"),
        ({"storage": "oracle+cx://host/0"}, "it begins with oracle+cx://", "sqlite:///study.db"),
        ({"storage": "://host/0"}, "storage is not a URL of a database", "sqlite:///study.db"),
        ({"storage": "study.db"}, "it has the name of a database", "write sqlite:/// before it"),
        ({"study_name": "cart"}, "study_name is given without storage", "write storage"),
        ({"storage": "study.log", "sampler": "cmaes"}, "as a pickle", "use another sampler"),
    ],
)
def test_wrong_storage_is_refused_in_the_file(options: dict[str, Any], said: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, **options)
    (problem,) = caught.value.problems
    assert said in problem.message
    assert hint in (problem.hint or "")
    assert int(problem.where.split(":")[1]) > 5


def database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("notes.txt", "notes.txt is not a journal file of Optuna"),
        ("data.json", "data.json is not a journal file of Optuna"),
        ("folder", "folder is not a journal file of Optuna"),
        ("sqlite:///notes.txt", "notes.txt is not a SQLite database of Optuna"),
        ("sqlite:///browser.db", "browser.db is not a SQLite database of Optuna"),
        ("~nobody-of-this-name/study.log", "~nobody-of-this-name does not exist"),
        ("sqlite:///missing/study.db", "missing does not exist"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite:///file:study.db?uri=true", "must name a file"),
        ("mysql+nonsense://host/db", "cannot be opened"),
        ("postgresql://user:hunter2@127.0.0.1:1/db", ""),
    ],
)
def test_other_files_are_refused_and_left_as_they_are(storage: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk\n")
    (tmp_path / "data.json").write_text("[1]\n")
    (tmp_path / "folder").mkdir()
    database(tmp_path / "browser.db")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(UsageError) as caught:
        open_storage(storage, tmp_path)
    assert said in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_relative_storages_begin_at_the_folder(tmp_path: Path) -> None:
    for storage in ("sqlite:///study.db", "study.log"):
        open_storage(storage, tmp_path)
        assert open_storage(storage, tmp_path).get_all_studies() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.db", "study.log"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("mysql://host/db?user=me&password=hunter2", "mysql://host/db?user=me&password=***"),
        ("mysql://host/db?passwd=hunter2&charset=utf8", "mysql://host/db?passwd=***&charset=utf8"),
        ("sqlite:///study.db", "sqlite:///study.db"),
        ("what? token=3", "what? token=3"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, shown: str) -> None:
    assert masked({"storage": [text]}) == {"storage": [shown]}
    assert masked_command(["-o", f"search.optuna.storage={text}"])[1] == f"search.optuna.storage={shown}"


def test_password_of_a_storage_is_shown_nowhere_and_its_run_is_private(tmp_path: Path) -> None:
    from rlexp.runs.run_directory import RunDirectory

    plan = plan_of(tmp_path, storage="postgresql://me:hunter2@host/db")
    assert "hunter2" not in json.dumps(plan_as_json(plan, None, None))
    with (
        RunDirectory.create(tmp_path / "out", "small", None, [], overwrite=False) as directory,
        begun_journal(plan, directory, 0),
    ):
        assert os.stat(directory.path).st_mode & 0o077 == 0
        assert "hunter2" not in (directory.path / "search.jsonl").read_text()
        assert "hunter2" in (directory.path / "resolved.yaml").read_text(), "a resume needs it"


class Attack:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("attacked",)


def test_pickles_in_a_study_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Optuna's CMA-ES sampler would load."""
    monkeypatch.chdir(tmp_path)
    search = {"searcher": "optuna", "num_samples": 9, "optuna": {"storage": "study.log", "n_startup_trials": 1}}
    sweep = sweep_of(tmp_path, {**STORED_SPACE, "gamma": {"uniform": [0.9, 0.99]}}, search)
    searcher = OptunaSearcher(sweep, StudyMember("first", tmp_path, tmp_path))
    trial = searcher._study.ask()
    attributes: dict[str, Any] = {"cma:optimizer:0": pickle.dumps(Attack()).hex(), "cma:generation": 0}
    for key, value in attributes.items():
        searcher._study._storage.set_trial_system_attr(trial._trial_id, key, value)
    searcher._study.tell(trial, 1.0)
    second = OptunaSearcher(sweep, StudyMember("second", tmp_path, tmp_path))
    for configuration in range(4):
        assert second.suggest(configuration) is not None
        second.record(configuration, Outcome(OutcomeStatus.FINISHED, 1.0, 10))
    assert not (tmp_path / "attacked").exists()
    assert isinstance(second._study._storage, optuna.storages.JournalStorage)


def test_refused_storage_is_named_with_its_line_and_without_its_password(tmp_path: Path) -> None:
    search = {"searcher": "optuna", "optuna": {"storage": "sqlite:///missing/study.db"}}
    with pytest.raises(ConfigError) as caught:
        require_study(sweep_of(tmp_path, {"lr": {"loguniform": [1e-4, 1e-2]}}, search), tmp_path)
    (problem,) = caught.value.problems
    lines = (tmp_path / "sweep.yaml").read_text().splitlines()
    assert "storage" in lines[int(problem.where.split(":")[1]) - 1]
    assert "missing does not exist" in problem.message
    assert problem.hint == "make it, or name a file elsewhere"
