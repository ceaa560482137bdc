"""Agents that installed packages bring: found by name, refused where they cannot be used, trained like ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.board.joinable import joinable_trial
from rlexp.agents.board.submitted_task import TrainerLimits, training_obstacle
from rlexp.agents.board.trusted_code import TrustedCode
from rlexp.agents.loaded_checkpoint import LoadedCheckpoint
from rlexp.agents.registry import agent_class
from rlexp.config.keys import agent_packages
from rlexp.config.keys.agents import AGENTS, agents_of_packages, built_in_base, experiment_class, find_agent
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import key_table
from rlexp.config.load import Plan, load_plan
from rlexp.config.reference import hints
from rlexp.errors import CheckpointError, ConfigError, TrialError, UsageError
from rlexp.submission.experiment_task import task_on_board
from rlexp.task_pool import InlineTaskPool
from rlexp.terminal.explanations import print_explanation
from rlexp.transport.board import Task
from tests.agent_packages import ENTRY, KEYS, install_agent

Install = Callable[..., None]
SMALL = "learning_starts: 32, train_batch_size: 8, buffer_size: 500, hiddens: [8], model: {fcnet_hiddens: [8]}"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install packages into a folder where Python looks first, until the test ends."""
    site = tmp_path / "site"
    before = set(sys.modules)

    def into_site(**parts: Any) -> None:
        install_agent(site, **parts)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr(agent_packages, "INSTALLED_IN", (str(site),))

    yield into_site
    for name in set(sys.modules) - before:
        if name.startswith("twice_dqn"):
            del sys.modules[name]
    for cached in (agent_packages.packaged_agents, agent_packages.experiment_of, key_table):
        cached.cache_clear()


def load(text: str, folder: Path, run: str = "TwiceDQN") -> Plan:
    file = folder / "a.yaml"
    file.write_text(f"a:\n  run: {run}\n  env: CartPole-v1\n  stop: {{timesteps_total: 100}}\n  config: {{{text}}}\n")
    return load_plan([file])


def problems(text: str, folder: Path, run: str = "TwiceDQN") -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as refused:
        load(text, folder, run)
    return [(problem.message, problem.hint or "") for problem in refused.value.problems]


@pytest.mark.parametrize("run", ["TwiceDQN", "twicedqn", "TWICEDQN"])
def test_agent_is_found_in_any_case_with_its_keys(install: Install, tmp_path: Path, run: str) -> None:
    install()
    (trial,) = load("reward_factor: 3.0, n_step: 2", tmp_path, run).trials
    assert trial.experiment.run == "TwiceDQN"
    assert trial.experiment.config.model_dump()["reward_factor"] == 3.0
    assert built_in_base("TwiceDQN") == "DQN"
    assert agents_of_packages() == ("TwiceDQN",)


def test_it_gets_the_other_spellings_of_the_agent_that_it_derives_from(install: Install, tmp_path: Path) -> None:
    install()
    plan = load("exploration_config: {type: SoftQ}, optimizer_class: SyncReplayOptimizer", tmp_path)
    assert plan.trials[0].experiment.config.model_dump()["soft_q"] is True
    message, _ = problems("multiagent: {policies: {a: 1}}", tmp_path)[0]
    assert "multi-agent training" in message


def test_its_keys_are_checked_like_ours(install: Install, tmp_path: Path) -> None:
    install()
    assert problems("reward_factor: -1", tmp_path)[0][0] == "config.reward_factor must be a number > 0, got -1"
    message, hint = problems("reward_faktor: 1", tmp_path)[0]
    assert message == "unknown key config.reward_faktor (agent TwiceDQN)"
    assert hint == "did you mean reward_factor?"


def test_names_of_ours_are_never_looked_up(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(entry="DQN = twice_dqn.keys:TwiceDQNExperiment")
    assert experiment_class("DQN") is AGENTS["DQN"]
    assert agents_of_packages() == ()

    def fail(path: tuple[str, ...]) -> Any:
        raise AssertionError("packages were searched")

    monkeypatch.setattr("rlexp.config.keys.agents.packaged_agents", fail)
    assert [find_agent(name) for name in ("dqn", "APEX", "Ppo")] == ["DQN", "APEX", "PPO"]
    assert load("", tmp_path, "dqn").trials


def test_nothing_is_imported_before_a_file_names_it(install: Install) -> None:
    install(keys="raise SystemError('imported')")
    assert find_agent("TwiceDQN") == "TwiceDQN"
    assert "TwiceDQN" in hints.agents()
    assert "twice_dqn.keys" not in sys.modules


def test_unknown_agents_are_told_what_is_installed(install: Install, tmp_path: Path) -> None:
    install()
    assert problems("", tmp_path, "TwiceDQM")[0] == ("unknown agent TwiceDQM", "did you mean TwiceDQN?")
    assert problems("", tmp_path, "SAC")[0][1] == "use DQN, APEX, PPO or TwiceDQN"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"entry": "TwiceDQN = twice_dqn.nothing:Here"}, "cannot be imported: ModuleNotFoundError"),
        ({"keys": "raise OSError('no licence')"}, "cannot be imported: OSError: no licence"),
        ({"entry": "TwiceDQN = twice_dqn.keys:TwiceDQNConfig"}, "is no class of experiments"),
        ({"entry": "Other = twice_dqn.keys:TwiceDQNExperiment"}, 'must have the field run: Literal["Other"]'),
        ({"keys": KEYS.replace('"twice_dqn.agent:TwiceDQNAgent"', '"twice_dqn"')}, "must have AGENT"),
    ],
    ids=["no-module", "raises", "no-experiment", "other-name", "no-agent"],
)
def test_packages_that_cannot_be_used_are_refused_at_run(
    install: Install, tmp_path: Path, parts: dict[str, str], message: str
) -> None:
    install(**parts)
    run = parts.get("entry", ENTRY).partition(" ")[0]
    ((found, hint),) = problems("", tmp_path, run)
    assert found.startswith(f"agent {run} of the package twice-dqn")
    assert message in found
    assert hint


def test_two_packages_with_one_name_are_refused(install: Install, tmp_path: Path) -> None:
    install()
    install(package="thrice-dqn")
    ((message, hint),) = problems("", tmp_path)
    assert message.startswith("agent TwiceDQN is in several packages: ")
    assert "pip uninstall" in hint


def test_packages_of_the_current_folder_are_not_installed() -> None:
    assert not {"", str(Path.cwd())} & set(agent_packages.INSTALLED_IN)
    assert agent_packages.INSTALLED_IN


@pytest.mark.parametrize(
    ("agent", "message"),
    [("", "TwiceDQNAgent is no class of agents"), ("import no_such_module", "cannot be imported")],
)
def test_what_trains_must_be_an_agent(install: Install, tmp_path: Path, agent: str, message: str) -> None:
    install(agent=agent)
    (trial,) = load("", tmp_path).trials
    with pytest.raises(UsageError, match=message):
        agent_class(trial.experiment)


def test_boards_are_for_our_own_agents(install: Install, tmp_path: Path) -> None:
    install()
    with pytest.raises(UsageError, match="actors cannot join TwiceDQN over a board"):
        joinable_trial(load("", tmp_path).trials, "leave out --board")


def test_explain_shows_it(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install()
    print_explanation("twicedqn")
    shown = capsys.readouterr().out
    assert "config.reward_factor" in shown
    assert "Defaults of TwiceDQN" in shown
    print_explanation("run")
    assert "others: TwiceDQN" in " ".join(capsys.readouterr().out.split())


def test_a_task_of_a_board_does_not_import_it(install: Install) -> None:
    install()
    task = Task("t1", "a", 1, file="a:\n  run: TwiceDQN\n  env: CartPole-v1\n")
    obstacle = training_obstacle(task, TrustedCode(), TrainerLimits())
    assert obstacle is not None
    assert obstacle.message == "cannot be read: agent TwiceDQN is of a package, and only rlexp's own are allowed here"
    with pytest.raises(TrialError, match="cannot read"):
        task_on_board(task, TrustedCode())
    assert not [name for name in sys.modules if name.startswith("twice_dqn")]


def test_it_trains_and_its_checkpoint_is_read_back(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    (trial,) = load(f"reward_factor: 5.0, timesteps_per_iteration: 80, min_iter_time_s: 0, {SMALL}", tmp_path).trials
    experiment: Experiment = trial.experiment
    agent = agent_class(experiment)(experiment.env, experiment.config, InlineTaskPool(), 0)
    row = agent.train()
    assert row["info"]["reward_factor"] == 5.0
    assert row["info"]["num_updates"] > 0
    metadata = {"experiment": experiment.model_dump(mode="json", by_alias=True)}
    path = agent.save(tmp_path / "checkpoint_000001", metadata)
    agent.stop()
    monkeypatch.setattr(agent_packages, "INSTALLED_IN", ())
    with pytest.raises(CheckpointError, match="is of the agent TwiceDQN, which is not installed here"):
        LoadedCheckpoint.load(path)
    install()
    loaded = LoadedCheckpoint.load(path)
    assert type(loaded.experiment).__name__ == "TwiceDQNExperiment"
    assert loaded.policy().policy is not None
