"""Agents that installed packages bring: found by name, refused where they cannot be used, trained like ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.agents.registry import agent_class, policies_of
from rlexp.board.actor.trainer import TrainerLimits, training_obstacle
from rlexp.board.client.run import task_on_board
from rlexp.board.messages.basics import Task
from rlexp.board.task import joinable_trial
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.commands import completion
from rlexp.config.keys import agents, user_code
from rlexp.config.keys.agents import AGENTS, agents_of_packages, built_in_base, experiment_class, find_agent
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import key_table
from rlexp.config.load import Plan, load_plan
from rlexp.config.reference import hints
from rlexp.config.reference.candidates import overrides_from
from rlexp.errors import CheckpointError, ConfigError, TrialError, UsageError
from rlexp.terminal.explanations import print_explanation
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.agent_packages import AGENT, ENTRY, KEYS, install_agent
from tests.lab.agents import saved

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
        monkeypatch.setattr(user_code, "INSTALLED_IN", (str(site),))

    yield into_site
    for name in set(sys.modules) - before:
        if name.startswith("twice_dqn"):
            del sys.modules[name]
    for cached in (user_code._entry_points, agents.experiment_of, key_table):
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
    message, _ = problems("multiagent: {policies: [a, b]}", tmp_path)[0]
    assert "rlexp trains one policy" in message


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

    def fail() -> Any:
        raise AssertionError("packages were searched")

    monkeypatch.setattr("rlexp.config.keys.agents.packaged_agents", fail)
    assert [find_agent(name) for name in ("dqn", "APEX", "Ppo", "pqn")] == ["DQN", "APEX", "PPO", "PQN"]
    assert load("", tmp_path, "dqn").trials


def test_nothing_is_imported_before_a_file_names_it(install: Install) -> None:
    install(keys="raise SystemError('imported')")
    assert find_agent("TwiceDQN") == "TwiceDQN"
    assert "TwiceDQN" in hints.agents()
    assert "twice_dqn.keys" not in sys.modules


def test_unknown_agents_are_told_what_is_installed(install: Install, tmp_path: Path) -> None:
    install()
    assert problems("", tmp_path, "TwiceDQM")[0] == ("unknown agent TwiceDQM", "did you mean TwiceDQN?")
    assert problems("", tmp_path, "QMIX")[0][1] == f"use {', '.join(AGENTS)} or TwiceDQN"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"entry": "TwiceDQN = twice_dqn.nothing:Here"}, "cannot be imported: ModuleNotFoundError"),
        ({"keys": "raise OSError('no licence')"}, "cannot be imported: OSError: no licence"),
        ({"entry": "TwiceDQN = twice_dqn.keys:TwiceDQNConfig"}, "is not a subclass of Experiment"),
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


def test_another_spelling_of_its_name_makes_no_second_package(install: Install, tmp_path: Path) -> None:
    install()
    install(package="Twice.DQN")
    assert load("", tmp_path).trials


def test_packages_of_the_current_folder_are_not_installed() -> None:
    assert not {"", str(Path.cwd())} & set(user_code.INSTALLED_IN)
    assert user_code.INSTALLED_IN


@pytest.mark.parametrize(
    ("agent", "message"),
    [("", "TwiceDQNAgent is not a subclass of rlexp"), ("import no_such_module", "cannot be imported")],
)
def test_what_trains_must_be_an_agent(install: Install, tmp_path: Path, agent: str, message: str) -> None:
    install(agent=agent)
    (trial,) = load("", tmp_path).trials
    with pytest.raises(UsageError, match=message):
        agent_class(trial.experiment)


@pytest.mark.parametrize("method", ["make_policy", "exploring_player", "evaluation_exploration", "exportable"])
def test_an_agent_that_says_itself_how_it_acts_is_refused(install: Install, tmp_path: Path, method: str) -> None:
    install(agent=f"{AGENT}\n    @classmethod\n    def {method}(cls, *args):\n        raise NotImplementedError\n")
    (trial,) = load("", tmp_path).trials
    with pytest.raises(UsageError, match=f"TwiceDQNAgent has {method}, which an agent's Policies have"):
        agent_class(trial.experiment)


@pytest.mark.parametrize("policies", ["None", "TwiceLearner", "'rlexp.agents.dqn.players:DQNPolicies'"])
def test_an_agent_must_have_policies(install: Install, tmp_path: Path, policies: str) -> None:
    install(agent=f"{AGENT}\n    POLICIES = {policies}\n")
    (trial,) = load("", tmp_path).trials
    for found_by in (agent_class, policies_of):
        with pytest.raises(UsageError, match="POLICIES is not a subclass of rlexp"):
            found_by(trial.experiment)


def test_an_agent_without_policies_is_refused(install: Install, tmp_path: Path) -> None:
    install(agent="from rlexp.agents.agent import Agent\n\n\nclass TwiceDQNAgent(Agent):\n    pass\n")
    (trial,) = load("", tmp_path).trials
    with pytest.raises(UsageError, match="POLICIES is not a subclass"):
        agent_class(trial.experiment)


def keys_with_policies(name: str) -> str:
    agent = '    AGENT: ClassVar[str] = "twice_dqn.agent:TwiceDQNAgent"\n'
    assert agent in KEYS
    return KEYS.replace(agent, f'{agent}    POLICIES: ClassVar[str] = "{name}"\n')


@pytest.mark.parametrize("name", ["twice_dqn.agent:Nothing", "twice_dqn.agent:TwiceLearner", "os:path"])
def test_policies_of_an_experiment_must_be_some(install: Install, tmp_path: Path, name: str) -> None:
    install(keys=keys_with_policies(name))
    (trial,) = load("", tmp_path).trials
    for found_by in (agent_class, policies_of):
        with pytest.raises(UsageError, match=f"{name} is not a subclass of rlexp"):
            found_by(trial.experiment)


def test_evaluations_and_checkpoints_have_the_same_policies(install: Install, tmp_path: Path) -> None:
    own = "\n\nfrom rlexp.agents.dqn.players import DQNPolicies\n\n\nclass Own(DQNPolicies):\n    pass\n"
    install(agent=AGENT + own, keys=keys_with_policies("twice_dqn.agent:Own"))
    (trial,) = load("", tmp_path).trials
    message = "has the POLICIES twice_dqn.agent:Own, but .*TwiceDQNAgent has rlexp.agents.dqn.players:DQNPolicies"
    with pytest.raises(UsageError, match=message):
        agent_class(trial.experiment)


def test_checkpoints_are_played_by_the_policies_of_the_nearest_agent(install: Install, tmp_path: Path) -> None:
    own = "\n\nclass Own(DQNAgent.POLICIES):\n    pass\n\n\nTwiceDQNAgent.POLICIES = Own\n"
    install(agent=AGENT + own)
    (trial,) = load("", tmp_path).trials
    assert policies_of(trial.experiment).__name__ == "Own"
    assert agent_class(trial.experiment).POLICIES is policies_of(trial.experiment)


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


def completed(word: str, folder: Path) -> list[str]:
    """Return what a shell completes behind a file of the agent."""
    file = folder / "a.yaml"
    file.write_text("a:\n  run: twicedqn\n  env: CartPole-v1\n")
    return [candidate.text for candidate in overrides_from(word, completion._agents_in([file]))]


def test_shells_complete_its_keys(install: Install, tmp_path: Path) -> None:
    install()
    assert completed("reward_f", tmp_path) == ["reward_factor=", "reward_factor=2.0"]
    assert completed("clip_p", tmp_path) == [], "PPO's alone"


def test_shells_complete_our_keys_where_it_cannot_be_used(install: Install, tmp_path: Path) -> None:
    install(keys="raise OSError('no licence')")
    assert completed("clip_p", tmp_path) == ["clip_param=", "clip_param=0.3"]


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
    path = saved(agent, experiment, tmp_path)
    monkeypatch.setattr(user_code, "INSTALLED_IN", ())
    with pytest.raises(CheckpointError, match="is of the agent TwiceDQN, which is not installed here"):
        LoadedCheckpoint.load(path)
    install()
    loaded = LoadedCheckpoint.load(path)
    assert type(loaded.experiment).__name__ == "TwiceDQNExperiment"
    assert loaded.policy().policy is not None
