"""Files to plans: every problem at its place, with what to do about it."""

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.cluster.room.fit import fitted
from rlexp.cluster.room.machine import Cluster, Machine
from rlexp.config.load import LoadOptions, converted_file, load_experiments, load_plan, resolved_yaml
from rlexp.config.reference.hints import agents
from rlexp.errors import ConfigError
from tests.lab import experiment_files
from tests.lab.experiment_files import config_of, messages, planned

Write = Callable[[str], str]
MINIMAL = "a:\n  run: APEX\n  env: CartPole-v1\n  stop: {timesteps_total: 1000000}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file, named f.yaml from where the test runs."""
    monkeypatch.chdir(tmp_path)

    def to_file(text: str) -> str:
        Path("f.yaml").write_text(text)
        return "f.yaml"

    return to_file


def problems(paths: str | Sequence[str], *overrides: str) -> list[tuple[str, str, str | None]]:
    return experiment_files.problems(load_plan, [paths] if isinstance(paths, str) else paths, overrides)


def test_load_reports_every_problem_in_file_order(write: Write) -> None:
    path = write(
        "a:\n  run: apex\n  env: CartPole-v1\n  stop: {episode_return_mean: 475}\n  lr: 3\n"
        "  config:\n    num_wokers: 2\n    double_q: 'no'\n    stop: 3\n    gamma: 1.5\n    adam_epsilon: '1e-8'\n"
        "    model: {fcnet_hiddens: [64, x]}\n    fcnet_activation: tanh\n    optimizer: {debg: true}\n"
        "b: 3\nc:\n  run: DQN\n  config: {num_replay_buffer_shards: 2}\n"
    )
    assert problems(path) == [
        (
            "f.yaml:4:10",
            "stop.episode_return_mean is not a metric of the results",
            "did you mean episode_reward_mean?",
        ),
        ("f.yaml:5:3", "unknown key lr", "lr belongs under config"),
        ("f.yaml:7:5", "unknown key config.num_wokers (agent APEX)", "did you mean num_workers?"),
        (
            "f.yaml:8:15",
            "config.double_q must be true or false, got the string 'no'",
            "write false, without quotes",
        ),
        ("f.yaml:9:5", "unknown key config.stop (agent APEX)", "stop belongs beside config, not under it"),
        ("f.yaml:10:12", "config.gamma must be a number >= 0 and <= 1, got 1.5", None),
        (
            "f.yaml:11:19",
            "config.adam_epsilon must be a number > 0, got the string '1e-8'",
            "write 1e-8, without quotes",
        ),
        ("f.yaml:12:33", "config.model.fcnet_hiddens[1] must be a whole number >= 1, got the string 'x'", None),
        (
            "f.yaml:13:5",
            "unknown key config.fcnet_activation (agent APEX)",
            "fcnet_activation belongs under config.model",
        ),
        ("f.yaml:14:17", "unknown key config.optimizer.debg (agent APEX)", "did you mean debug?"),
        ("f.yaml:15:4", "experiment b must be a mapping, got 3", "it needs run and env at least"),
        (
            "f.yaml:16:1",
            "env is missing",
            "write env: CartPole-v1, or env: package.module:Class for one of your own",
        ),
        (
            "f.yaml:18:12",
            "unknown key config.num_replay_buffer_shards (agent DQN)",
            "num_replay_buffer_shards is a key of APEX, APEX_DDPG and APEX_R2D2",
        ),
    ]


@pytest.mark.parametrize("group", ["", "multiagent: "])
def test_remedies_for_thousands_of_misspelt_keys_are_not_looked_for(write: Write, group: str) -> None:
    keys = ", ".join(f"lerning_rate_{number}: 1" for number in range(3000))
    path = write(f"{MINIMAL}  config: {{{group and group + '{'}{keys}{group and '}'}}}\n")
    found = problems(path)
    assert len(found) == 201
    assert found[0][1].endswith("lerning_rate_0 (agent APEX)")
    assert found[-1][1:] == ("further errors are not listed", "correct the others first")


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        ("QMIX", "QMIX is an algorithm of RLlib that rlexp does not have", f"use {agents()}"),
        ("apexx", "unknown agent apexx", "did you mean APEX?"),
        ("3", "run must be the name of an agent, got 3", f"use {agents()}"),
        ("{grid_search: [DQN, APEX]}", "run must be the name of an agent, got a mapping", f"use {agents()}"),
    ],
)
def test_load_unknown_agent(write: Write, run: str, message: str, hint: str | None) -> None:
    path = write(f"a:\n  run: {run}\n  nv: CartPole-v1\n  config: {{whatever: 1}}\n")
    (missing, unknown_agent, unknown_key) = problems(path)
    assert missing[:2] == ("f.yaml:1:1", "env is missing")
    assert unknown_agent == ("f.yaml:2:8", message, hint)
    assert unknown_key == ("f.yaml:3:3", "unknown key nv", "did you mean env?")


def test_load_unknown_agent_with_scheduler_of_tune(write: Write) -> None:
    search = "search: {scheduler: AsyncHyperBand, asha: {grace_period: 10}}"
    (found,) = problems(write(f"a: {{run: apexx, env: CartPole-v1, {search}, config: {{lr: {{choice: [1, 2]}}}}}}\n"))
    assert found[1] == "unknown agent apexx"


def test_max_t_of_a_scheduler_moves_to_stop(write: Write) -> None:
    text = (
        "a: {run: DQN, env: CartPole-v1, search: {scheduler: HyperBand, hyperband: {max_t: 90, time_attr: %s}}, %s}\n"
    )
    sampled = "config: {lr: {choice: [0.1, 0.2]}}"
    write(text % ("training_iteration", sampled))
    plan = load_plan(["f.yaml"])
    assert plan.sweeps[0].variants[0].stop == {"training_iteration": 90}
    assert plan.sweeps[0].search.scheduler == "hyperband"
    ((_, message, hint),) = problems(write(text % ("time_total_s", f"stop: {{time_total_s: 80}}, {sampled}")))
    assert message.startswith("search.hyperband.max_t is another name of stop.time_total_s, but they differ: 80 at")
    assert hint == "keep one of them"


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        ("a:\n  env: CartPole-v1\n", "f.yaml:1:1", "run is missing", f"write run: {agents()}"),
        ("{}\n", "f.yaml", "has no experiment", "write one, with run and env at least"),
        (
            f"{MINIMAL}  name: b\n",
            "f.yaml:5:3",
            "unknown key name",
            "the name of an experiment is the key above it in the file",
        ),
        (
            f"{MINIMAL}  config:\n    buffer_size: 1000\n    train_batch_size: 2000\n",
            "f.yaml:7:5",
            "config.train_batch_size is 2000, more than buffer_size, which is 1000",
            "lower train_batch_size or raise buffer_size",
        ),
        (
            MINIMAL.replace("timesteps_total", "evaluation/episode_reward_mean"),
            "f.yaml:4:3",
            "stop.evaluation/episode_reward_mean is never reported, because there are no evaluations",
            "set config.evaluation_interval to the iterations between two evaluations",
        ),
        (
            f"{MINIMAL}  config:\n    lr:1e-3\n",
            "f.yaml:6:5",
            "config must be a mapping, got the string 'lr:1e-3'",
            "write a space after the colon: lr: 1e-3",
        ),
        (
            f"{MINIMAL}  config: {{model: {{fcnet_hiddens: [[64]]}}}}\n",
            "f.yaml:5:36",
            "config.model.fcnet_hiddens[0] must be a whole number >= 1, got a list",
            "to try each of them, write {grid_search: [[64]]}",
        ),
        (
            f"{MINIMAL}  time_budget_s: 30m\n",
            "f.yaml:5:18",
            "time_budget_s must be a number > 0 or null, got the string '30m'",
            "write 1800, in seconds",
        ),
        (f"{MINIMAL}  environment: CartPole-v1\n", "f.yaml:5:3", "unknown key environment", "did you mean env?"),
        (
            f"{MINIMAL}  config: {{target_kl: 0.1}}\n",
            "f.yaml:5:12",
            "unknown key config.target_kl (agent APEX)",
            "no key ends the epochs of a train batch early; kl_target is the goal of the penalty kl_coeff",
        ),
        (f"{MINIMAL}  seeds: 3\n", "f.yaml:5:3", "unknown key seeds", "did you mean num_seeds?"),
        (
            f"{MINIMAL}  num_seeds: 3\n  num_samples: 2\n",
            "f.yaml:5:3",
            "num_seeds and num_samples are both the number of seeds here, but they differ",
            "keep num_seeds",
        ),
        (
            f"{MINIMAL}  stop.time_total_s: 3\n",
            "f.yaml:5:3",
            "unknown key stop.time_total_s",
            "in a file, nest it: stop: {time_total_s: ...}",
        ),
        (
            f"{MINIMAL}  config: {{seed: 1, n_step: 0100}}\n",
            "f.yaml:5:29",
            "0100 starts with 0, which YAML 1.1 reads as octal",
            "write 100, or quote it",
        ),
    ],
)
def test_problem_has_its_place_and_a_hint(write: Write, text: str, where: str, message: str, hint: str) -> None:
    assert problems(write(text)) == [(where, message, hint)]


def test_metrics_of_evaluations_may_stop_where_there_are_some(write: Write) -> None:
    text = MINIMAL.replace("timesteps_total", "evaluation/episode_reward_mean")
    assert load_plan([write(f"{text}  config: {{evaluation_interval: 2}}\n")]).trials


def test_load_reports_all_files_and_duplicate_names(write: Write) -> None:
    write(MINIMAL)
    Path("g.yaml").write_text(MINIMAL.replace("1000000", "abc"))
    assert problems(["f.yaml", "g.yaml", "none.yaml"]) == [
        ("g.yaml:1:1", "experiment a already exists at f.yaml:1:1", "give each experiment its own name"),
        ("g.yaml:4:27", "stop.timesteps_total must be a number, got the string 'abc'", None),
        ("none.yaml", "path does not exist", "rlexp init writes a file to begin with, rlexp examples lists others"),
    ]


def test_load_reports_text_and_key_problems_together(write: Write) -> None:
    found = problems(write(MINIMAL + "  config: {lr: 1, lr: 2, lrr: 3}\n"))
    assert [(where, message) for where, message, _ in found] == [
        ("f.yaml:5:19", "lr is given twice with different values: 1 at f.yaml:5:12, 2 here"),
        ("f.yaml:5:26", "unknown key config.lrr (agent APEX)"),
    ]


@pytest.mark.parametrize(
    ("head", "config", "messages"),
    [
        (
            MINIMAL,
            "{num_gpus: 2, lr: fast, num_gpus_per_worker: 0.1, train_batch_size: 100000}",
            [
                "config.num_gpus: 2 reserves 2 GPUs, but the learner uses 1",
                "config.lr must be a number > 0, got the string 'fast'",
                "config.num_gpus_per_worker: 0.1 reserves GPUs, but workers use none",
                "config.train_batch_size is 100000, more than buffer_size, which is 50000",
            ],
        ),
        (  # what depends on the wrong value is unknown
            MINIMAL,
            "{train_batch_size: 100000, buffer_size: many}",
            ["config.buffer_size must be a whole number >= 1, got the string 'many'"],
        ),
        (
            MINIMAL.replace("  env: CartPole-v1\n", ""),
            "{num_gpus: 2}",
            ["env is missing", "config.num_gpus: 2 reserves 2 GPUs, but the learner uses 1"],
        ),
    ],
)
def test_wrong_values_hide_no_conflict(head: str, config: str, messages: list[str], write: Write) -> None:
    found = problems(write(f"{head.replace('APEX', 'DQN')}  config: {config}\n"))
    assert [message for _, message, _ in found] == messages


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        ".",
        "'..'",
        '""',
        "a/b",
        r"a\b",
        "x" * 101,
        *(f'"\\{sign}"' for sign in ("e[2J", "x9b31m", "u202egnp")),
    ],
)
def test_experiment_name_must_be_a_folder_name(name: str, write: Write) -> None:
    where, message, _ = problems(write(MINIMAL.replace("a:", f"{name}:", 1)))[0]
    assert where == "f.yaml:1:1"
    assert message.startswith("name must be the name of a folder")


@pytest.mark.parametrize(
    ("end", "notices"),
    [
        (1000, []),
        (
            500,
            [
                "config.lr_schedule goes on to 1,000 env steps, but stop.timesteps_total is 500: "
                "the learning rate ends at 0.0005, not at 0"
            ],
        ),
        (2000, ["config.lr_schedule is 0 from 1,000 env steps on: nothing more is learned until 2,000"]),
    ],
)
def test_a_rate_that_does_not_fit_the_stop_has_a_notice(end: int, notices: list[str], write: Write) -> None:
    text = MINIMAL.replace("1000000", str(end))
    plan = load_plan([write(f"{text}  config: {{lr_schedule: [[0, 1e-3], [1000, 0]]}}\n")])
    assert [notice.message for notice in plan.notices if "lr_schedule" in notice.message] == notices


def test_a_rate_of_the_command_line_takes_the_place_of_the_files_schedule(write: Write) -> None:
    path = write(f"{MINIMAL}  config: {{lr_schedule: [[0, 1e-3], [1000000, 0]]}}\n")
    plan = load_plan([path], ["lr=1e-4"])
    assert (config_of(plan).lr, config_of(plan).lr_schedule) == (1e-4, None)
    assert [vars(notice) for notice in plan.notices] == [
        {"where": "-o lr=1e-4", "message": "config.lr takes the place of config.lr_schedule"}
    ]
    plan = load_plan([path], ["lr=1e-4", "lr_schedule=[[0, 1], [1000000, 0]]"])
    assert config_of(plan).lr_schedule == ((0, 1), (1_000_000, 0))


@pytest.mark.parametrize("rates", ["{loguniform: [1e-4, 1e-2]}", "{uniform: [0.1, 1]}"])
def test_a_key_without_effect_cannot_be_searched(rates: str, write: Write) -> None:
    text = f"{MINIMAL}  search: {{num_samples: 2}}\n  config:\n    lr_schedule: [[0, 1]]\n    lr: {rates}\n"
    ((_, message, hint),) = problems(write(text))
    assert (message, hint) == ("lr cannot be searched: lr_schedule is given", "leave one of the two out")


@pytest.mark.parametrize("key", ["use_state_preprocessor", "replay_ratio", "num_deltas"])
def test_a_key_of_rllib_for_other_agents_is_never_suggested_for_itself(write: Write, key: str) -> None:
    path = write(f"{MINIMAL}  config: {{{key}: 1}}\n".replace("APEX", "PPO"))
    assert problems(path)[0][2] == f"RLlib has {key} for other agents; leave it out"


def test_missing_stop_has_a_notice(write: Write) -> None:
    plan = load_plan([write("a: {run: DQN, env: CartPole-v1, stop: , config: }\n")])
    assert [vars(notice) for notice in plan.notices] == [
        {"where": "f.yaml:1:1", "message": "a has no stop, so it runs until it is interrupted"}
    ]
    assert plan.sources == (Path("f.yaml"),)


@pytest.mark.parametrize(("search", "trials"), [("", 3), ("  search: {num_samples: 4}\n", 12)])
def test_num_seeds_beside_config_is_that_of_a_run_or_of_a_sweep(write: Write, search: str, trials: int) -> None:
    text = MINIMAL + search + "  num_seeds: 3\n  config: {lr: {uniform: [0.1, 1]}}\n"
    (parsed,) = load_experiments([write(text if search else f"{MINIMAL}  num_seeds: 3\n")])
    assert parsed.number_of_trials == trials


def test_messages_escape_control_characters(write: Write) -> None:
    _, message, _ = problems(write(MINIMAL + '  config: {"\\e[31mred": 1}\n'))[0]
    assert "\x1b" not in message


class TestHints:
    @pytest.mark.parametrize(
        ("config", "key", "hint"),
        [
            ("learning_rate: 1", "learning_rate", "did you mean lr?"),
            ("total_timesteps: 9", "total_timesteps", "did you mean stop.timesteps_total?"),
            ("net_arch: [64]", "net_arch", "did you mean config.model.fcnet_hiddens?"),
            ("policy_kwargs: {}", "policy_kwargs", "did you mean model?"),
            ("batch_size: 64", "batch_size", "did you mean train_batch_size?"),
            ("n_timesteps: 9", "n_timesteps", "did you mean stop.timesteps_total?"),
            ("model: {gridsearch: [1]}", "model.gridsearch", "did you mean grid_search?"),
            ("lr:1e-3", "lr:1e-3", "write a space after the colon: lr: 1e-3"),
            (
                "config.model.fcnet_hiddens: [64]",
                "config.model.fcnet_hiddens",
                "in a file, nest it: config: {model: {fcnet_hiddens: ...}}",
            ),
            ("optimizer.debug: true", "optimizer.debug", "in a file, nest it: config: {optimizer: {debug: ...}}"),
            ("leraning_rate: 1", "leraning_rate", "did you mean lr?"),
            ("enviroment: x", "enviroment", "did you mean env?"),
            ("total_timestep: 9", "total_timestep", "did you mean stop.timesteps_total?"),
            ("timesteps_total: 9", "timesteps_total", "timesteps_total belongs under stop"),
            ("workers_num: 2", "workers_num", "did you mean num_workers?"),
            ("explore_config: {}", "explore_config", "did you mean exploration_config?"),
            ("exploration_config: {typ: x}", "exploration_config.typ", "did you mean type?"),
            ("num_env_runner: 2", "num_env_runner", "did you mean num_workers?"),
            ("optimizer: {max_weight: 2}", "optimizer.max_weight", "did you mean max_weight_sync_delay?"),
            ("fcnet_hidden: [8]", "fcnet_hidden", "did you mean config.model.fcnet_hiddens?"),
            ("LR: 1", "LR", "did you mean lr?"),
            ("resources: {}", "resources", None),
        ],
    )
    def test_unknown_key_of_probable_meaning(self, write: Write, config: str, key: str, hint: str | None) -> None:
        ((_, *said),) = problems(write(f"{MINIMAL}  config: {{{config}}}\n"))
        assert said == [f"unknown key config.{key} (agent APEX)", hint]

    @pytest.mark.parametrize(
        ("run", "key", "hint"),
        [
            ("PPO", "batch_size", "did you mean sgd_minibatch_size?"),
            ("PPO", "n_epochs", "did you mean num_sgd_iter?"),
            ("PPO", "update_epochs", "did you mean num_sgd_iter?"),
            ("PPO", "clip_range", "did you mean clip_param?"),
            ("PPO", "clip_range_vf", "did you mean vf_clip_param?"),
            ("PPO", "ent_coef", "did you mean entropy_coeff?"),
            ("SAC", "ent_coef", "did you mean initial_alpha?"),
            ("TD3", "policy_noise", "did you mean target_noise?"),
            ("PPO", "n_steps", "did you mean sample_batch_size?"),
            ("DQN", "n_steps", "did you mean n_step?"),
            ("PPO", "n_step", "n_step is a key of DQN, APEX, SIMPLEQ, DDPG, TD3, APEX_DDPG, SAC, R2D2 and APEX_R2D2"),
        ],
    )
    def test_the_agent_decides_what_a_word_means(self, write: Write, run: str, key: str, hint: str) -> None:
        text = f"{MINIMAL.replace('APEX', run)}  config: {{{key}: 64}}\n"
        ((_, *said),) = problems(write(text.replace("CartPole-v1", "Pendulum-v1") if run == "TD3" else text))
        assert said == [f"unknown key config.{key} (agent {run})", hint]

    @pytest.mark.parametrize(
        ("config", "demand", "got", "hint"),
        [
            ("n_step: [1, 3]", "a whole number >= 1", "a list", "to try each of them, write {grid_search: [1, 3]}"),
            ("lr: [1e-3]", "a number > 0", "a list", "to try each of them, write {grid_search: [0.001]}"),
            ("lr: {gridsearch: [1]}", "a number > 0", "a mapping", "did you mean grid_search?"),
            ("lr: {Grid-Search: [1]}", "a number > 0", "a mapping", "did you mean grid_search?"),
            ("lr: {log_uniform: [1]}", "a number > 0", "a mapping", "did you mean loguniform?"),
            ("n_step: 1M", "a whole number >= 1", "the string '1M'", "write 1000000"),
            ("n_step: 1.5 k", "a whole number >= 1", "the string '1.5 k'", "write 1500"),
            ("gamma: 99%", "a number >= 0 and <= 1", "the string '99%'", "write 0.99"),
            ("gamma: 99.9%", "a number >= 0 and <= 1", "the string '99.9%'", "write 0.999"),
            ("lr: '1_000'", "a number > 0", "the string '1_000'", "write 1000, without quotes"),
            ("lr: '0,001'", "a number > 0", "the string '0,001'", "write 0.001"),
            ("buffer_size: '1,000,000'", "a whole number >= 1", "the string '1,000,000'", "write 1000000"),
            ("buffer_size: 1.000.000", "a whole number >= 1", "the string '1.000.000'", "write 1000000"),
            ("n_step: '1,5'", "a whole number >= 1", "the string '1,5'", None),
            ("lr: '1,00,0'", "a number > 0", "the string '1,00,0'", None),
            ("double_q: 'True'", "true or false", "the string 'True'", "write true, without quotes"),
            (
                "gamma: 'tune.uniform(0.9, 1)'",
                "a number >= 0 and <= 1",
                "the string 'tune.uniform(0.9, 1)'",
                "write {uniform: [0.9, 1]}",
            ),
            ("lr: fast", "a number > 0", "the string 'fast'", None),
            ("lr: 1e300", "at most 1e+38", "1e+300", None),
            ("prioritized_replay_eps: 1e300", "at most 1e+38", "1e+300", None),
        ],
    )
    def test_value_of_probable_meaning(
        self, write: Write, config: str, demand: str, got: str, hint: str | None
    ) -> None:
        ((_, *said),) = problems(write(f"{MINIMAL}  config: {{{config}}}\n"))
        assert said == [f"config.{config.partition(':')[0]} must be {demand}, got {got}", hint]

    @pytest.mark.parametrize(
        ("lines", "where", "message", "hint"),
        [
            (
                "config: [{num_workers: 0}, {lr: 0.1}]",
                "5:11",
                "config must be a mapping, got a list",
                "write one mapping, without dashes: {num_workers: 0, lr: 0.1}",
            ),
            (
                "config:\n    model:\n      - fcnet_hiddens: [8]\n",
                "7:7",
                "config.model must be a mapping, got a list",
                "write one mapping, without dashes: {fcnet_hiddens: [8]}",
            ),
            ("config: [lr, 0.1]", "5:11", "config must be a mapping, got a list", None),
            (
                "config: [{lr: 1}, {lr: 0.1}]",
                "5:11",
                "config must be a mapping, got a list",
                "to try each of them, write {grid_search: [{lr: 1}, {lr: 0.1}]}",
            ),
            (
                "config: {model: {fcnet_hiddens: [[64], 32]}}",
                "5:36",
                "config.model.fcnet_hiddens[0] must be a whole number >= 1, got a list",
                None,
            ),
            ("config: {gamma: []}", "5:19", "config.gamma must be a number >= 0 and <= 1, got an empty list", None),
            (
                "config: {lr_schedule: [[0, 0.1], [100]]}",
                "5:36",
                "config.lr_schedule[1] must be [timestep, value], got [100]",
                None,
            ),
            (
                "config: {lr_schedule: [[0, 0.1], [9, fast]]}",
                "5:36",
                "config.lr_schedule[1] must be [timestep, value], got [9, fast]",
                None,
            ),
            (
                "config: {lr_schedule: [[0, 0.1], [0, 0.2]]}",
                "5:36",
                "config.lr_schedule[1] must be at a later timestep than the item before it, got [0, 0.2]",
                None,
            ),
            (
                "config: {lr_schedule: {0: 1}}",
                "5:25",
                "config.lr_schedule must be a list of [timestep, value] with ascending timesteps, or null, "
                "got a mapping",
                None,
            ),
            (
                "config: {model: {conv_filters: [[16, 8, 4], [32]]}}",
                "5:47",
                "config.model.conv_filters[1] must be [channels, kernel, stride], got [32]",
                None,
            ),
        ],
    )
    def test_list_of_probable_meaning(
        self, write: Write, lines: str, where: str, message: str, hint: str | None
    ) -> None:
        assert problems(write(f"{MINIMAL}  {lines}\n")) == [(f"f.yaml:{where}", message, hint)]

    @pytest.mark.parametrize(
        ("beside", "key", "hint"),
        [
            ("enviroment: x", "enviroment", "did you mean env?"),
            ("leraning_rate: 1", "leraning_rate", "did you mean config.lr?"),
            ("search: {asha: {grace: 3}}", "search.asha.grace", "did you mean grace_period?"),
        ],
    )
    def test_unknown_key_beside_config(self, write: Write, beside: str, key: str, hint: str) -> None:
        found = problems(write(f"{MINIMAL}  {beside}\n"))
        assert [said for _, *said in found if str(said[0]).startswith("unknown")] == [[f"unknown key {key}", hint]]

    def test_no_space_after_the_colon_of_a_metric(self, write: Write) -> None:
        ((_, message, hint),) = problems(write(MINIMAL.replace("timesteps_total: 1", "timesteps_total:1")))
        assert message == "stop.timesteps_total:1000000 is not a metric of the results"
        assert hint == "write a space after the colon: timesteps_total: 1000000"

    def test_experiment_with_dashes(self, write: Write) -> None:
        ((_, message, hint),) = problems(write("a:\n  - run: DQN\n  - env: CartPole-v1\n"))
        assert message == "experiment a must be a mapping, got a list"
        assert hint == "write one mapping, without dashes: {run: DQN, env: CartPole-v1}"

    @pytest.mark.parametrize(
        ("metric", "meant"),
        [
            ("episode_reward", "episode_reward_mean"),
            ("reward", "episode_reward_mean"),
            ("steps", "timesteps_total"),
            ("iterations", "training_iteration"),
            ("episode_mean_reward", "episode_reward_mean"),
            ("episode_min_rewrad", "episode_reward_min"),
            ("total_timestep", "timesteps_total"),
        ],
    )
    def test_metric_of_another_name(self, write: Write, metric: str, meant: str) -> None:
        ((_, message, hint),) = problems(write(MINIMAL.replace("timesteps_total", metric)))
        assert (message, hint) == (f"stop.{metric} is not a metric of the results", f"did you mean {meant}?")
        lines = f"{MINIMAL}  search: {{metric: {metric}}}\n  checkpoint_score_attr: min-{metric}\n"
        assert [hint for _, _, hint in problems(write(lines))] == [f"did you mean {meant}?"] * 2

    @pytest.mark.parametrize(
        "text",
        [
            "run: DQN\nenv: CartPole-v1\nconfig:\n  lr: 1\n",
            "env: CartPole-v1\nrun: DQN\n",
            "run: DQN\n",
            "run: DQN\nmodel: {}\n",
        ],
    )
    def test_file_without_a_name_is_one_problem(self, write: Write, text: str) -> None:
        ((where, message, hint),) = problems(write(text))
        assert where == "f.yaml:1:1"
        assert message.startswith("the experiment has no name: run")
        assert hint == "write my-experiment: in the first line, and indent everything else below it"

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("config:\n  lr: 0.1\n", [("f.yaml:5:1", "config")]),
            (
                "config:\n  lr: 0.1\nnum_seeds: 2\nb: {run: DQN, env: CartPole-v1}\n",
                [("f.yaml:5:1", "config"), ("f.yaml:7:1", "num_seeds")],
            ),
            ("config:\n  lr: -1\n", [("f.yaml:5:1", "config"), ("f.yaml:6:7", None)]),
        ],
    )
    def test_keys_at_the_top_level_belong_to_the_experiment_above(
        self, write: Write, text: str, found: list[tuple[str, str | None]]
    ) -> None:
        said = problems(write(MINIMAL + text))
        assert [where for where, _, _ in said] == [where for where, _ in found]
        for (_, message, hint), (_, key) in zip(said, found, strict=True):
            if key is None:
                assert message == "config.lr must be a number > 0, got -1"
            else:
                assert message == f"{key} is at the top level of the file, beside the experiment a"
                assert hint == "indent it below a"

    def test_a_key_of_config_at_the_top_level_is_told_its_place(self, write: Write) -> None:
        assert problems(write(MINIMAL + "lr: 1e-3\n")) == [
            ("f.yaml:5:1", "lr is a key of config, and cannot be at the top level", "write it below config of a")
        ]

    def test_every_key_may_be_at_the_top_level(self, write: Write) -> None:
        found = problems(write("a:\nrun: DQN\nenv: CartPole-v1\nstop: {timesteps_total: 9}\n"))
        assert [(where, hint) for where, _, hint in found] == [
            (f"f.yaml:{n}:1", "indent it below a") for n in (2, 3, 4)
        ]

    @pytest.mark.parametrize("name", ["run", "config"])
    def test_experiments_may_be_called_like_keys(self, write: Write, name: str) -> None:
        assert load_plan([write(MINIMAL.replace("a:", f"{name}:", 1))]).trials


def test_duplicate_key_notice_belongs_to_its_experiment(write: Write) -> None:
    path = write(
        f"{MINIMAL}  config: {{lr: 1, lr: 1.0}}\nb: {{run: DQN, env: CartPole-v1, stop: {{time_total_s: 1}}}}\n"
    )
    plan = load_plan([path])
    assert [vars(notice) for notice in plan.notices] == [
        {"where": "f.yaml:5:19", "message": "lr is given twice with the same value: here and at f.yaml:5:12"}
    ]
    assert converted_file(Path(path)).count("# converted:") == 1


def test_yaml_1_1_words_become_values(write: Write) -> None:
    path = write(
        f"{MINIMAL}  config:\n    double_q: no\n    dueling: {{grid_search: [ON, off]}}\n    buffer_size: 1_000_000\n"
        "    gpu: no\n    clip_rewards: Yes\n    env_config: {a: off, b: 'off', c: [1_0, x]}\n    num_workers: 0\n"
    )
    plan = load_plan([path])
    made = [trial.experiment.config for trial in plan.trials]
    assert [(config.double_q, config.dueling) for config in made] == [(False, True), (False, False)]  # type: ignore[attr-defined]
    assert (config_of(plan).buffer_size, config_of(plan).clip_rewards) == (1_000_000, True)
    assert config_of(plan).env_config == {"a": False, "b": "off", "c": [10, "x"]}
    assert [message for message in messages(plan) if "is read as" in message] == [
        "config.double_q: no is read as false; write false",
        "config.dueling: ON is read as true; write true",
        "config.dueling: off is read as false; write false",
        "config.buffer_size: 1_000_000 is read as 1000000; write 1000000",
        "config.gpu: no is read as false; write false",
        "config.clip_rewards: Yes is read as true; write true",
        "config.env_config.a: off is read as false; write false, or 'off' for a string",
        "config.env_config.c: 1_0 is read as 10; write 10, or '1_0' for a string",
    ]
    assert planned(resolved_yaml(plan)).trials == plan.trials


def test_yaml_1_1_words_stay_strings_at_string_keys(write: Write) -> None:
    plan = load_plan([write(f"{MINIMAL}  restore: on\n  config: {{num_workers: 0}}\n")])
    assert plan.trials[0].experiment.restore == "on"
    ((_, message, _),) = problems(write(f"{MINIMAL}  config: {{batch_mode: off}}\n"))
    assert message.endswith("got the string 'off'")


def test_yaml_1_1_words_in_overrides_become_values(write: Write) -> None:
    plan = load_plan([write(MINIMAL)], ["double_q=no", "num_workers=0", "buffer_size=1_000_000"])
    assert (config_of(plan).double_q, config_of(plan).buffer_size) == (False, 1_000_000)


class TestStop:
    @pytest.mark.parametrize("metric", ["timesteps_total", "time_total_s", "episodes_total", "info/num_steps_trained"])
    @pytest.mark.parametrize("number", ["0", "-1000", "-0.5"])
    def test_counters_and_times_must_be_positive(self, write: Write, metric: str, number: str) -> None:
        ((where, message, hint),) = problems(write(MINIMAL.replace("timesteps_total: 1000000", f"{metric}: {number}")))
        assert (where, message) == ("f.yaml:4:10", f"stop.{metric} must be a number > 0, got {number}")
        assert hint == "only rewards can be 0 or negative"

    def test_updates_may_be_given_by_their_short_name(self, write: Write) -> None:
        plan = load_plan([write(MINIMAL)], ["stop.num_updates=500"])
        assert plan.trials[0].experiment.stop == {"timesteps_total": 1_000_000, "info/num_updates": 500}
        assert not plan.notices

    @pytest.mark.parametrize("number", ["0", "-110", "-0.5", "1e300"])
    def test_rewards_may_be_any_number(self, write: Write, number: str) -> None:
        path = write(MINIMAL.replace("timesteps_total: 1000000", f"episode_reward_mean: {number}"))
        assert load_plan([path]).trials[0].experiment.stop == {"episode_reward_mean": float(number)}
        (found,) = problems(write(MINIMAL.replace("timesteps_total: 1000000", "episode_reward_mean: .inf")))
        assert found[1] == "stop.episode_reward_mean must be a finite number, got inf"

    def test_metrics_out_of_range_come_with_all_other_problems(self, write: Write) -> None:
        text = MINIMAL.replace("1000000", "-1, time_total_s: 0") + "  config: {gamma: 2}\n"
        assert [where for where, _, _ in problems(write(text))] == ["f.yaml:4:10", "f.yaml:4:31", "f.yaml:5:19"]


class TestGpus:
    TEXT = MINIMAL + "  config: {num_workers: 2, num_gpus: 2, num_gpus_per_worker: 0.1}\n"

    @pytest.mark.parametrize("run", ["DQN", "APEX"])
    def test_gpus_that_nobody_would_use_are_refused(self, write: Write, run: str) -> None:
        assert problems(write(self.TEXT.replace("APEX", run))) == [
            (
                "f.yaml:5:28",
                "config.num_gpus: 2 reserves 2 GPUs, but the learner uses 1",
                "write num_gpus: 1; --fit lowers it for you",
            ),
            (
                "f.yaml:5:41",
                "config.num_gpus_per_worker: 0.1 reserves GPUs, but workers use none",
                "write num_gpus_per_worker: 0; --fit lowers it for you",
            ),
        ]

    @pytest.mark.parametrize("text", ["gpu: true, gpu_fraction: 3", "devices: ['/gpu:0', '/gpu:1']", "num_gpus: 1.5"])
    def test_they_are_refused_in_any_spelling(self, write: Write, text: str) -> None:
        ((_, message, _),) = problems(write(f"{MINIMAL}  config: {{num_workers: 0, {text}}}\n"))
        assert message.startswith("config.num_gpus: ")
        found = problems(write(MINIMAL), "num_gpus=2")
        assert [where for where, _, _ in found] == ["-o num_gpus=2"]

    @pytest.mark.parametrize(("gpus", "kept"), [(0, 0), (1, 1), (8, 1)])
    def test_fit_lowers_them_with_a_notice(self, write: Write, gpus: int, kept: int) -> None:
        machine = Machine(cpus=4, gpus=gpus, memory_total=2**34, memory_available=2**34)
        plan = load_plan([write(self.TEXT)], options=LoadOptions(adjust=partial(fitted, cluster=Cluster.of(machine))))
        assert (config_of(plan).num_gpus, config_of(plan).num_gpus_per_worker) == (kept, 0)
        assert messages(plan) == [
            f"a: num_gpus: {kept} instead of 2 (--fit)",
            "a: num_gpus_per_worker: 0 instead of 0.1 (--fit)",
        ]

    @pytest.mark.parametrize("gpus", ["0", "0.25", "1"])
    def test_one_gpu_or_a_part_of_it_is_fine(self, write: Write, gpus: str) -> None:
        plan = load_plan([write(f"{MINIMAL}  config: {{num_workers: 0, num_gpus: {gpus}}}\n")])
        assert config_of(plan).num_gpus == float(gpus)

    def test_ppo_has_a_learner_for_each(self, write: Write) -> None:
        made = config_of(load_plan([write(MINIMAL.replace("APEX", "PPO") + "  config: {num_gpus: 2}\n")]))
        assert (made.num_gpus, made.num_learners) == (2, 2)


class TestWhereKeysStand:
    @pytest.mark.parametrize(
        "config",
        [
            "{num_replay_buffer_shards: 2, train_batch_size: 64}",
            "{optimizer: {num_replay_buffer_shards: 2, train_batch_size: 64}}",
            "{num_replay_buffer_shards: 2, train_batch_size: 64, optimizer: {num_replay_buffer_shards: 2.0}}",
            "{train_batch_size: 64, optimizer: {train_batch_size: 64, num_replay_buffer_shards: 2}}",
        ],
    )
    def test_flat_and_nested_are_the_same(self, write: Write, config: str) -> None:
        loaded = config_of(load_plan([write(f"{MINIMAL}  config: {config}\n")]))
        assert (loaded.optimizer.num_replay_buffer_shards, loaded.train_batch_size) == (2, 64)

    def test_both_with_different_values(self, write: Write) -> None:
        path = write(
            MINIMAL
            + "  config:\n    debug: true\n    optimizer: {debug: false, buffer_size: 900000}\n"
            + "    buffer_size: 800000\n"
        )
        found = problems(path)
        assert [(where, message) for where, message, _ in found] == [
            (
                "f.yaml:7:17",
                "debug is given twice with different values, in config and in optimizer: "
                "true at f.yaml:6:5, false here",
            ),
            (
                "f.yaml:8:5",
                "buffer_size is given twice with different values, in config and in optimizer: "
                "900000 at f.yaml:7:31, 800000 here",
            ),
        ]

    def test_an_optimizer_that_is_no_group(self, write: Write) -> None:
        found = problems(write(MINIMAL + "  config: {debug: true, optimizer: 3}\n"))
        assert ("f.yaml:5:36", "config.optimizer must be a mapping, got 3", None) in found


class TestOverrides:
    def test_they_lie_over_the_file_and_the_last_one_wins(self, write: Write) -> None:
        path = write(MINIMAL + "  config: {lr: 1, num_replay_buffer_shards: 2}\n")
        overrides = [
            "lr=2",
            "config.lr=1e-3",
            "num_replay_buffer_shards=3",
            "stop.time_total_s=60",
            "env=MountainCar-v0",
        ]
        plan = load_plan(
            [path], [*overrides, "model.fcnet_hiddens=[64, 64]", "env_config.size=4", "optimizer.buffer_size=1e5"]
        )
        experiment = plan.trials[0].experiment
        assert config_of(plan).lr == 1e-3
        assert config_of(plan).optimizer.num_replay_buffer_shards == 3
        assert config_of(plan).model.fcnet_hiddens == (64, 64)
        assert config_of(plan).env_config == {"size": 4}
        assert config_of(plan).buffer_size == 100_000
        assert experiment.stop == {"timesteps_total": 1_000_000, "time_total_s": 60}
        assert experiment.env == "MountainCar-v0"

    def test_run_decides_what_the_others_mean(self, write: Write) -> None:
        plan = load_plan([write(MINIMAL)], ["debug=true", "run=apex"])
        assert config_of(plan).optimizer.debug
        assert problems("f.yaml", "debug=true", "run=dqn")[0][0] == "-o debug=true"

    @pytest.mark.parametrize("name", ["run", "algo", "alg"])
    def test_every_name_of_the_agent_chooses_it(self, write: Write, name: str) -> None:
        path = write(MINIMAL.replace("run:", f"{name}:"))
        assert load_plan([path], ["algo=DQN"]).trials[0].experiment.run == "DQN"
        assert problems(path, "alg=QMIX")[0][0] == "-o alg=QMIX"
        assert problems(path, "algo={grid_search: [PPO, DQN]}")[0][1].startswith("run must be the name of an agent")
        assert problems(path, "run.x=1")[0][1] == "run is the name of an agent, and has nothing below it: run.x"

    def test_an_agent_given_twice_must_be_the_same(self, write: Write) -> None:
        assert not load_plan([write(MINIMAL + "  algo: APEX\n")]).notices
        message = "run is given twice with different values: the string 'APEX' at f.yaml:2:3, the string 'DQN' here"
        assert problems(write(MINIMAL + "  algo: DQN\n")) == [("f.yaml:5:3", message, "keep one of them")]

    @pytest.mark.parametrize(
        ("keys", "override", "path", "value"),
        [
            ("config: {vf_share_layers: true}", "model.vf_share_layers=false", "config.model.vf_share_layers", False),
            ("config: {model: {framestack: true}}", "model.no_framestack=true", "config.model.framestack", False),
            ("config: {num_cpus_for_driver: 1}", "resources_per_trial={cpu: 3}", "config.num_cpus_for_driver", 3),
            ("config: {}", "stop.num_env_steps_sampled_lifetime=20", "stop.timesteps_total", 20),
        ],
    )
    def test_another_spelling_of_a_key_precedes_the_file(
        self, write: Write, keys: str, override: str, path: str, value: object
    ) -> None:
        plan = load_plan([write(f"{MINIMAL}  {keys}\n".replace("APEX", "PPO"))], [override])
        found: Any = plan.trials[0].experiment
        for name in path.split("."):
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        assert found == value

    @pytest.mark.parametrize(
        ("keys", "override", "key", "value"),
        [
            ("prioritized_replay: true", "replay_buffer_config.type=ReplayBuffer", "prioritized_replay", False),
            ("soft_q: false", "exploration_config.type=SoftQ", "soft_q", True),
            ("exploration_final_eps: 0.2", "epsilon=[[0, 1], [9, 0.05]]", "exploration_final_eps", 0.05),
        ],
    )
    def test_a_group_of_rllib_precedes_the_file(
        self, write: Write, keys: str, override: str, key: str, value: object
    ) -> None:
        plan = load_plan([write(f"{MINIMAL}  config: {{{keys}}}\n".replace("APEX", "DQN"))], [override])
        assert getattr(config_of(plan), key) == value

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_number_of_samples_precedes_that_of_the_search(self, write: Write, number: int) -> None:
        path = write(MINIMAL + "  search: {num_samples: 5}\n  config: {lr: {uniform: [0.1, 1]}}\n")
        assert load_plan([path], [f"num_samples={number}"]).sweeps[0].search.num_samples == number

    def test_they_replace_a_grid_and_may_be_one(self, write: Write) -> None:
        path = write(MINIMAL + "  config: {lr: {grid_search: [1, 2]}}\n")
        assert len(load_plan([path], ["lr=3"]).trials) == 1
        assert len(load_plan([path], ["n_step={grid_search: [1, 2, 3]}"]).trials) == 6

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("lr=abc", "config.lr must be a number > 0, got the string 'abc'"),
            ("lr_schedule=[[0, 1e300]]", "config.lr_schedule[0] must be [timestep, value], got [0, 1e+300]"),
            ("num_seeds=0", "num_seeds (num_samples) must be a whole number >= 1, got 0"),
            ("n_step=0100", "0100 starts with 0, which YAML 1.1 reads as octal"),
            ("lrr=1", "unknown key config.lrr (agent APEX)"),
            ("stop.nothing=1", "stop.nothing is not a metric of the results"),
            ("lr.x=1", "config.lr is not a mapping here, so x cannot be set in it"),
            ("lr", "an override must be key.path=value"),
            ("=1", "an override must be key.path=value"),
            ("a..b=1", "an override must be key.path=value"),
            ("lr=[1", "not valid YAML: expected ',' or ']', but got '<stream end>'"),
            ("run=QMIX", "QMIX is an algorithm of RLlib that rlexp does not have"),
            ("config=3", "config must be a mapping, got 3"),
            ("model=", None),
        ],
    )
    def test_problems_cite_them(self, write: Write, override: str, message: str | None) -> None:
        path = write(MINIMAL + "  config: {lr: 1}\n")
        if message is None:
            assert load_plan([path], [override]).trials
        else:
            assert [found[:2] for found in problems(path, override)] == [(f"-o {override}", message)]

    def test_they_set_nothing_inside_a_grid(self, write: Write) -> None:
        path = write(MINIMAL + "  config: {model: {grid_search: [{}]}}\n")
        expected = ("-o model.dim=42", "config.model is not a mapping here, so dim cannot be set in it", None)
        assert problems(path, "model.dim=42") == [expected]

    def test_seed(self, write: Write) -> None:
        path = write(MINIMAL + "  config: {seed: {grid_search: [1, 2]}}\n")
        plan = load_plan([path], seed=7)
        assert [trial.experiment.config.seed for trial in plan.trials] == [7]
        with pytest.raises(ConfigError) as caught:
            load_plan([path], seed=-1)
        assert caught.value.problems[0].where == "--seed -1"


class TestResolved:
    TEXT = (
        "a:\n  run: apex\n  env: CartPole-v1\n  stop: {timesteps_total: {grid_search: [1e5, 0.5]}}\n  num_samples: 2\n"
        "  config:\n    lr: {grid_search: [1e-3, 1]}\n    num_replay_buffer_shards: 2\n"
        "    model: {grid_search: [{fcnet_hiddens: [64]}, {fcnet_hiddens: [{grid_search: [8, 16]}, 3]}]}\n"
        "    env_config: {a: '1e3', b: ['012', 'no', ''], c: 1.0}\n"
        "b: {run: DQN, env: 'pkg.mod:Env', config: {seed: {grid_search: [1, 2]}}}\n"
    )

    def test_resolved_file_makes_same_plan(self, write: Write) -> None:
        plan = load_plan([write(self.TEXT)])
        text = resolved_yaml(plan)
        again = planned(text)
        assert resolved_yaml(again) == text
        assert again.trials == plan.trials

    @pytest.mark.parametrize(
        ("grid", "varied", "end"),
        [
            (
                "config: {grid_search: [{lr: 0.1, n_step: 2}, {lr: 0.2, n_step: 2}]}",
                [{"lr": 0.1}, {"lr": 0.2}],
                "lr=0.1",
            ),
            (
                "config: {grid_search: [{model: {fcnet_hiddens: [8]}}, {seed: 3}]}",
                [{"seed": 7, "model": {"fcnet_hiddens": [8]}}, {"seed": 3, "model": {"fcnet_hiddens": [256, 256]}}],
                "seed=7,model=fcnet_hiddens=8",
            ),
            (
                "config: {model: {grid_search: [{fcnet_hiddens: [8]}, {fcnet_hiddens: [9]}]}}",
                [{"model": {"fcnet_hiddens": [8]}}, {"model": {"fcnet_hiddens": [9]}}],
                "model=fcnet_hiddens=8",
            ),
            (
                "config: {env_config: {grid_search: [{a: 1, b: 2}, {a: 1, c: 2}]}}",
                [{"env_config": {"b": 2}}, {"env_config": {"c": 2}}],
                "env_config=b=2",
            ),
        ],
    )
    def test_of_mappings_in_a_grid_only_what_differs_is_varied(
        self, grid: str, varied: list[object], end: str, write: Write
    ) -> None:
        plan = load_plan([write(f"a: {{run: DQN, env: 'pkg.mod:Env', {grid}}}")], fresh_seed=lambda: 7)
        assert [trial.varied for trial in plan.trials] == varied
        assert plan.trials[0].name == f"00000-DQN-pkg.mod_Env-{end}"
        assert planned(resolved_yaml(plan)).trials == plan.trials

    def test_resolved_file_has_defaults_and_grids(self, write: Write) -> None:
        plan = load_plan([write(self.TEXT)], fresh_seed=lambda: 77)
        resolved = plan.experiments[0].resolved
        assert resolved["run"] == "APEX"
        assert resolved["stop"] == {"timesteps_total": {"grid_search": [100_000, 0.5]}}
        assert resolved["config"]["lr"] == {"grid_search": [0.001, 1.0]}
        assert [choice["fcnet_hiddens"] for choice in resolved["config"]["model"]["grid_search"]] == [
            [64],
            [8, 3],
            [16, 3],
        ]
        assert resolved["config"]["optimizer"]["max_weight_sync_delay"] == 400
        assert resolved["config"]["seed"] == 77
        assert plan.experiments[1].resolved["config"]["seed"] == {"grid_search": [1, 2]}


words = st.sampled_from(
    ["run", "env", "stop", "config", "lr", "optimizer", "model", "grid_search", "APEX", "DQN", "seed", "debug"]
)
trees = st.recursive(
    words | st.none() | st.booleans() | st.integers(-2, 5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(tree=st.dictionaries(words, trees, max_size=6), override=st.tuples(words, trees))
def test_load_any_text_raises_config_error_only(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any], override: tuple[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    full = {"run": "APEX", "env": "CartPole-v1", **tree}
    path.write_text(json.dumps({"a": full}).replace("NaN", ".nan").replace("Infinity", ".inf"))
    with contextlib.suppress(ConfigError):
        plan = load_plan([path], [f"{override[0]}={json.dumps(override[1])}"])
        path.write_text(resolved_yaml(plan))
        assert resolved_yaml(load_plan([path])) == resolved_yaml(plan)
