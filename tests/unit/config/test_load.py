"""Files to plans: every problem at its place, with what to do about it."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.load import Plan, load_plan, resolved_yaml
from rlexp.errors import ConfigError

Write = Callable[[str], str]
MINIMAL = "a:\n  run: APEX\n  env: CartPole-v1\n  stop: {timesteps_total: 100}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file, named f.yaml from where the test runs."""
    monkeypatch.chdir(tmp_path)

    def to_file(text: str) -> str:
        Path("f.yaml").write_text(text)
        return "f.yaml"

    return to_file


def problems(paths: str | Sequence[str], *overrides: str) -> list[tuple[str, str, str | None]]:
    with pytest.raises(ConfigError) as caught:
        load_plan([paths] if isinstance(paths, str) else paths, overrides)
    return [(problem.where, problem.message, problem.hint) for problem in caught.value.problems]


def config_of(plan: Plan) -> Any:
    return plan.trials[0].experiment.config


def test_every_problem_of_a_file_in_its_order(write: Write) -> None:
    path = write(
        "a:\n  run: apex\n  env: CartPole-v1\n  stop: {episode_return_mean: 475}\n  lr: 3\n"
        "  config:\n    num_wokers: 2\n    double_q: no\n    stop: 3\n    gamma: 1.5\n    adam_epsilon: '1e-8'\n"
        "    model: {fcnet_hiddens: [64, x]}\n    fcnet_activation: tanh\n    optimizer: {debg: true}\n"
        "b: 3\nc:\n  run: DQN\n  config: {num_replay_buffer_shards: 2}\n"
    )
    assert problems(path) == [
        (
            "f.yaml:4:10",
            "stop.episode_return_mean is not a metric that results report",
            "did you mean episode_reward_mean?",
        ),
        ("f.yaml:5:3", "lr is not a key of an experiment", "lr belongs under config"),
        ("f.yaml:7:5", "config.num_wokers is not a key of APEX", "did you mean num_workers?"),
        (
            "f.yaml:8:15",
            "config.double_q must be true or false, got the text 'no'",
            "write false: YAML 1.2 reads no as a text",
        ),
        ("f.yaml:9:5", "config.stop is not a key of APEX", "stop belongs beside config, not inside it"),
        ("f.yaml:10:12", "config.gamma must be a number >= 0 and <= 1, got 1.5", None),
        (
            "f.yaml:11:19",
            "config.adam_epsilon must be a number > 0, got the text '1e-8'",
            "write 1e-8, without quotes or underscores",
        ),
        ("f.yaml:12:33", "config.model.fcnet_hiddens[1] must be a whole number >= 1, got the text 'x'", None),
        ("f.yaml:13:5", "config.fcnet_activation is not a key of APEX", "fcnet_activation belongs under config.model"),
        ("f.yaml:14:17", "config.optimizer.debg is not a key of APEX", "did you mean debug?"),
        ("f.yaml:15:4", "experiment b must be a group of keys, got 3", "it needs run and env at least"),
        ("f.yaml:16:1", "env is missing", None),
        (
            "f.yaml:18:12",
            "config.num_replay_buffer_shards is not a key of DQN",
            "num_replay_buffer_shards is a key of APEX",
        ),
    ]


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        ("IMPALA", "run: IMPALA is an algorithm of RLlib that does not run here", "write DQN, APEX or PPO"),
        ("apexx", "run: apexx is no agent", "did you mean APEX?"),
        ("3", "run must be an agent's name, got 3", None),
        ("{grid_search: [DQN, APEX]}", "run must be an agent's name, got a group of keys", None),
    ],
)
def test_an_agent_that_is_not_here(write: Write, run: str, message: str, hint: str | None) -> None:
    path = write(f"a:\n  run: {run}\n  nv: CartPole-v1\n  config: {{whatever: 1}}\n")
    assert problems(path) == [
        ("f.yaml:1:1", "env is missing", None),
        ("f.yaml:2:8", message, hint),
        ("f.yaml:3:3", "nv is not a key of an experiment", "did you mean env?"),
    ]


def test_run_is_missing(write: Write) -> None:
    assert problems(write("a:\n  env: CartPole-v1\n")) == [
        ("f.yaml:1:1", "run is missing", "write run: DQN, APEX or PPO")
    ]


def test_problems_of_all_files_and_duplicate_names(write: Write) -> None:
    write(MINIMAL)
    Path("g.yaml").write_text(MINIMAL.replace("100", "abc"))
    assert problems(["f.yaml", "g.yaml", "none.yaml"]) == [
        ("g.yaml:1:1", "experiment a stands already at f.yaml:1:1", "experiments need different names"),
        ("g.yaml:4:27", "stop.timesteps_total must be a number, got the text 'abc'", None),
        ("none.yaml", "cannot be read: No such file or directory", None),
    ]


def test_problems_of_the_text_and_of_the_keys_come_together(write: Write) -> None:
    found = problems(write(MINIMAL + "  config: {lr: 1, lr: 2, lrr: 3}\n"))
    assert [(where, message) for where, message, _ in found] == [
        ("f.yaml:5:19", "key lr given twice (first at line 5)"),
        ("f.yaml:5:26", "config.lrr is not a key of APEX"),
    ]


def test_conflicts_point_at_the_key_that_is_written(write: Write) -> None:
    found = problems(write(MINIMAL + "  config:\n    buffer_size: 1000\n    train_batch_size: 2000\n"))
    assert [(where, message) for where, message, _ in found] == [
        ("f.yaml:6:5", "config.learning_starts is 50000 (its default), more than buffer_size holds: 1000"),
        ("f.yaml:7:5", "config.train_batch_size is 2000, more than buffer_size holds: 1000"),
    ]


def test_metrics_of_evaluations_need_evaluations(write: Write) -> None:
    text = MINIMAL.replace("timesteps_total", "evaluation/episode_reward_mean")
    ((where, message, hint),) = problems(write(text))
    assert (where, message) == (
        "f.yaml:4:3",
        "stop.evaluation/episode_reward_mean is never reported: nothing is evaluated",
    )
    assert hint is not None
    assert load_plan([write(text + "  config: {evaluation_interval: 2}\n")]).trials


@pytest.mark.parametrize("name", ["../../x", ".", "'..'", '"\\e[2J"', '"\\x9b31m"', '"\\u202egnp"'])
def test_a_name_that_is_no_folder(name: str, write: Write) -> None:
    where, message, _ = problems(write(MINIMAL.replace("a:", f"{name}:", 1)))[0]
    assert where == "f.yaml:1:1"
    assert message.startswith("name becomes a folder")


def test_a_name_inside(write: Write) -> None:
    assert problems(write(MINIMAL + "  name: b\n"))[0][:2] == ("f.yaml:5:3", "name is not a key of an experiment")


def test_a_mapping_without_experiments(write: Write) -> None:
    assert problems(write("{}\n")) == [("f.yaml", "holds no experiment", None)]


def test_no_stop_is_a_notice(write: Write) -> None:
    plan = load_plan([write("a: {run: DQN, env: CartPole-v1, stop: , config: }\n")])
    assert [vars(notice) for notice in plan.notices] == [
        {"where": "f.yaml:1:1", "message": "a has no stop: it runs until it is interrupted"}
    ]
    assert plan.sources == (Path("f.yaml"),)


def test_control_characters_do_not_reach_the_terminal(write: Write) -> None:
    _, message, _ = problems(write(MINIMAL + '  config: {"\\e[31mred": 1}\n'))[0]
    assert "\x1b" not in message


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
            ("f.yaml:7:17", "debug is given twice, in config and in optimizer: false here, true at f.yaml:6:5"),
            (
                "f.yaml:8:5",
                "buffer_size is given twice, in config and in optimizer: 800000 here, 900000 at f.yaml:7:31",
            ),
        ]

    def test_an_optimizer_that_is_no_group(self, write: Write) -> None:
        found = problems(write(MINIMAL + "  config: {debug: true, optimizer: 3}\n"))
        assert ("f.yaml:5:36", "config.optimizer must be a group of keys, got 3", None) in found


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
        assert experiment.stop == {"timesteps_total": 100, "time_total_s": 60}
        assert experiment.env == "MountainCar-v0"

    def test_run_decides_what_the_others_mean(self, write: Write) -> None:
        plan = load_plan([write(MINIMAL)], ["debug=true", "run=apex"])
        assert config_of(plan).optimizer.debug
        assert problems("f.yaml", "debug=true", "run=dqn")[0][0] == "-o debug=true"

    def test_they_replace_a_grid_and_may_be_one(self, write: Write) -> None:
        path = write(MINIMAL + "  config: {lr: {grid_search: [1, 2]}}\n")
        assert len(load_plan([path], ["lr=3"]).trials) == 1
        assert len(load_plan([path], ["n_step={grid_search: [1, 2, 3]}"]).trials) == 6

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("lr=abc", "config.lr must be a number > 0, got the text 'abc'"),
            ("lrr=1", "config.lrr is not a key of APEX"),
            ("stop.nothing=1", "stop.nothing is not a metric that results report"),
            ("lr.x=1", "config.lr is not a group of keys here"),
            ("lr", "an override is written key.path=value"),
            ("=1", "an override is written key.path=value"),
            ("a..b=1", "an override is written key.path=value"),
            ("lr=[1", "not valid YAML: expected ',' or ']', but got '<stream end>'"),
            ("run=SAC", "run: SAC is an algorithm of RLlib that does not run here"),
            ("config=3", "config must be a group of keys, got 3"),
            ("model=", None),
        ],
    )
    def test_problems_cite_them(self, write: Write, override: str, message: str | None) -> None:
        path = write(MINIMAL + "  config: {lr: 1}\n")
        if message is None:
            assert load_plan([path], [override]).trials
        else:
            assert [found[:2] for found in problems(path, override)] == [(f"-o {override}", message)]

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

    def test_it_makes_the_same_plan_again(self, write: Write) -> None:
        plan = load_plan([write(self.TEXT)])
        text = resolved_yaml(plan)
        again = load_plan([write(text)])
        assert resolved_yaml(again) == text
        assert again.trials == plan.trials

    def test_it_has_every_default_and_keeps_grids(self, write: Write) -> None:
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
def test_nothing_but_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any], override: tuple[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    full = {"run": "APEX", "env": "CartPole-v1", **tree}
    path.write_text(json.dumps({"a": full}).replace("NaN", ".nan").replace("Infinity", ".inf"))
    with contextlib.suppress(ConfigError):
        plan = load_plan([path], [f"{override[0]}={json.dumps(override[1])}"])
        path.write_text(resolved_yaml(plan))
        assert resolved_yaml(load_plan([path])) == resolved_yaml(plan)
