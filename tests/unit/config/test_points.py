"""Conditional spaces: ``choice`` of values that hold samplers, of which only those in the drawn value are drawn.

Distinct values of domains: their number and the values agree with what is drawn.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.config.domains import Domain, Listed, Normal, Range
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.load import LoadOptions, Plan, load_plan, resolved_yaml
from rlexp.config.points import Alternative, Alternatives, every_value, identity, is_continuous, number_of_values
from rlexp.terminal.checking import print_plan
from tests.lab.experiment_files import Load, problems

EXPLORATION = """
    exploration_config:
      choice:
        - {type: EpsilonGreedy, final_epsilon: {uniform: [0.01, 0.1]}}
        - {type: SoftQ, temperature: {loguniform: [0.1, 10]}}"""
SHARE = Range("uniform", (0.0, 1.0), 0.0, 1.0)
LAYER = Range("randint", (32, 256), 32, 255, step=1)
NESTED = Alternatives(
    "choice",
    [
        Alternative(None, {}),
        Alternative({"uniform": [0, 1]}, {(): SHARE}),
        Alternative([64, {"randint": [32, 256]}], {(1,): LAYER}),
        Alternative(
            {"a": {"choice": [True, {"uniform": [0, 1]}]}, "b": {"randn": [0, 1]}},
            {
                ("a",): Alternatives("choice", [Alternative(True, {}), Alternative({"uniform": [0, 1]}, {(): SHARE})]),
                ("b",): Normal(0, 1),
            },
        ),
        Alternative({"a": {"choice": [3, 4]}}, {("a",): Listed("choice", [3, 4])}),
    ],
)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Plan one sweep, given the lines of its ``config`` and the keys of its ``search``."""
    monkeypatch.chdir(tmp_path)

    def to_plan(config: str, search: str = "num_samples: 4") -> Plan:
        head = "a:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 100}\n"
        Path("f.yaml").write_text(f"{head}  search: {{{search}}}\n  config:\n    seed: 1\n    {config.strip()}\n")
        return load_plan(["f.yaml"], options=LoadOptions(is_sweep=True))

    return to_plan


def test_choice_with_samplers_inside_is_one_axis_with_a_column_for_each_key(sweep: Load) -> None:
    space = sweep(EXPLORATION).sweeps[0].space
    assert space.keys == ("exploration_config",)
    assert space.axes[0].domain.data() == {
        "choice": [
            {"type": "EpsilonGreedy", "final_epsilon": {"uniform": [0.01, 0.1]}},
            {"type": "SoftQ", "temperature": {"loguniform": [0.1, 10]}},
        ]
    }
    assert space.columns == tuple(f"exploration_config.{key}" for key in ("type", "final_epsilon", "temperature"))


def test_only_samplers_of_the_drawn_value_are_drawn(sweep: Load) -> None:
    trials = sweep(EXPLORATION, "num_samples: 200").trials
    drawn = Counter(trial.varied["exploration_config.type"] for trial in trials)
    assert 75 < drawn["SoftQ"] < 125
    assert 75 < drawn["EpsilonGreedy"] < 125
    for trial in trials:
        config, varied = trial.experiment.config, trial.varied
        assert isinstance(config, DQNConfig)
        if config.soft_q:
            assert set(varied) == {"exploration_config.type", "exploration_config.temperature"}
            assert 0.1 <= config.softmax_temp == varied["exploration_config.temperature"] <= 10
            assert config.exploration_final_eps == 0.02
        else:
            assert set(varied) == {"exploration_config.type", "exploration_config.final_epsilon"}
            assert 0.01 <= config.exploration_final_eps == varied["exploration_config.final_epsilon"] <= 0.1
            assert config.softmax_temp == 1.0
    assert len({trial.varied.get("exploration_config.temperature") for trial in trials}) > 70


def test_values_of_lists_and_single_keys_have_one_column(sweep: Load) -> None:
    plan = sweep(
        "hiddens: {choice: [[64], [{randint: [32, 256]}, {randint: [32, 256]}]]}\n"
        "    lr: {choice: [1e-3, {loguniform: [1e-5, 1e-4]}]}",
        "num_samples: 100",
    )
    assert plan.sweeps[0].space.columns == ("hiddens", "lr")
    sizes = Counter(len(trial.varied["hiddens"]) for trial in plan.trials)
    assert 20 < sizes[1] < 80
    assert sizes[1] + sizes[2] == 100
    assert all(32 <= size <= 255 for trial in plan.trials for size in trial.varied["hiddens"])
    rates = [trial.experiment.config.lr for trial in plan.trials]
    assert 20 < rates.count(1e-3) < 80
    assert all(1e-5 <= rate <= 1e-4 for rate in rates if rate != 1e-3)


def test_choice_inside_choice_draws_one_after_the_other(sweep: Load) -> None:
    plan = sweep(
        "env_config: {game: {choice: [easy, {level: {choice: [1, {randint: [10, 20]}]}, wind: {uniform: [0, 1]}}]}}",
        "num_samples: 200",
    )
    keys = Counter(tuple(trial.varied) for trial in plan.trials)
    assert set(keys) == {("env_config.game",), ("env_config.game.level", "env_config.game.wind")}
    levels = [trial.varied["env_config.game.level"] for trial in plan.trials if "env_config.game.level" in trial.varied]
    assert 0.35 < levels.count(1) / len(levels) < 0.65
    assert all(level in range(10, 20) for level in levels if level != 1)
    game: Any = plan.trials[0].experiment.config.env_config["game"]
    assert game == "easy" or set(game) == {"level", "wind"}


@pytest.mark.parametrize(
    ("config", "where", "text"),
    [
        ("lr: {choice: [1e-3, {uniform: [-1, 1]}]}", "f.yaml:8:36", "config.lr must be a number > 0, got -1"),
        ("lr: {choice: [1e-3, {uniform: [1, -1]}]}", "f.yaml:8:36", "config.lr.choice[1]: uniform needs low < high"),
        (
            "exploration_config:\n      choice:\n        - {type: EpsilonGreedy, final_epsilon: {uniform: [0, 1]}}\n"
            "        - {type: SoftQ, temperature: {quniform: [0, 2, 1]}}",
            "f.yaml:11:50",
            "config.softmax_temp must be a number > 0, got 0",
        ),
        (
            "exploration_config: {choice: [{}, {temperature: {uniform: [1, 2]}, heat: {uniform: [0, 1]}}]}",
            "f.yaml:8:72",
            "unknown key config.exploration_config.heat",
        ),
        (
            "optimizer: {choice: [{}, {x: {choice: [{uniform: [1, 2]}]}}]}",
            "f.yaml:8:31",
            "unknown key config.optimizer.x",
        ),
        ("lr: {choice: [1, {grid_search: [1, 2]}]}", "f.yaml:8:22", "config.lr: choice cannot hold grid_search"),
        ("lr: {grid_search: [1, {uniform: [1, 2]}]}", "f.yaml:8:27", "config.lr: grid_search cannot hold uniform"),
    ],
)
def test_problems_inside_a_choice_have_places(sweep: Load, config: str, where: str, text: str) -> None:
    (problem,) = problems(sweep, config)
    assert problem[0] == where
    assert problem[1].startswith(text)


def test_both_ends_inside_every_value_are_checked_with_other_keys(sweep: Load) -> None:
    sizes = "train_batch_size: {choice: [8, {randint: [16, 2000]}]}\n    buffer_size: {randint: [500, 5000]}"
    ((where, text, _),) = problems(sweep, sizes)
    assert (where, text) == ("f.yaml:8:36", "config.train_batch_size is 1999, more than buffer_size, which is 500")
    assert len(sweep(EXPLORATION).sweeps[0].variants) == 4


def test_many_samplers_inside_a_value_are_checked_in_pairs(sweep: Load) -> None:
    inside = ", ".join(f"x{number}: {{uniform: [0, 1]}}" for number in range(12))
    plan = sweep(f"env_config: {{a: {{choice: [{{{inside}}}, 3]}}}}")
    assert len(plan.sweeps[0].variants) == 1 + 12 + 12 * 11 // 2 + 1


def test_optuna_refuses_randn_inside_a_choice(sweep: Load) -> None:
    config = "lr: {choice: [1e-3, {randn: [1, 0.1]}]}"
    assert len(sweep(config).trials) == 4
    ((where, text, _),) = problems(sweep, config, "searcher: optuna")
    assert (where, text) == ("f.yaml:8:19", "lr: randn cannot be used with search.searcher: optuna")


def test_resolved_file_makes_the_same_sweep(sweep: Load, tmp_path: Path) -> None:
    plan = sweep(EXPLORATION + "\n    lr: {choice: [1e-3, {loguniform: [1e-5, 1e-4]}]}", "num_samples: 20")
    file = tmp_path / "resolved.yaml"
    file.write_text(resolved_yaml(plan))
    again = load_plan([file], options=LoadOptions(is_sweep=True))
    again_sweep = again.sweeps[0].with_axes_in_order(plan.sweeps[0].space.keys)
    assert again_sweep.planned_points() == plan.sweeps[0].planned_points()
    points = plan.sweeps[0].planned_points() or ()
    assert [again_sweep.trials(number, point) for number, point in enumerate(points)] == [
        plan.sweeps[0].trials(number, point) for number, point in enumerate(points)
    ]


def test_trial_names_are_short(sweep: Load) -> None:
    names = [trial.name for trial in sweep(EXPLORATION).trials]
    assert names[0].startswith("00000-DQN-CartPole-v1-exploration_config=type=")
    assert all(len(name) < 85 for name in names)


def test_check_prints_a_line_for_each_value(sweep: Load, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(sweep(EXPLORATION))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        '  exploration_config  choice {"type": "EpsilonGreedy", "final_epsilon": {"uniform": [0.01, 0.1]}}',
        '                      or     {"type": "SoftQ", "temperature": {"loguniform": [0.1, 10]}}',
    ]


@given(st.integers(0, 2**32))
def test_taken_finds_the_samplers_that_made_a_value(seed: int) -> None:
    value = NESTED.draw(Random(seed))
    place, values = NESTED.taken(value)
    assert NESTED.alternatives[place].filled(values) == value
    assert NESTED.holds(value)


def test_taken_refuses_values_outside_the_samplers() -> None:
    assert [NESTED.taken(value)[0] for value in (None, 0.5, [64, 100], {"a": True, "b": 0.3}, {"a": 4})] == [*range(5)]
    for value in (2.0, [64, 300], [64], [64, 33.5], {"a": True}, {"a": 5}, True, "x"):
        assert not NESTED.holds(value)
        with pytest.raises(ValueError, match="not one of the alternatives"):
            NESTED.taken(value)


def test_columns_have_the_domains_inside(sweep: Load) -> None:
    lines = """
    lr: {choice: [1e-3, {loguniform: [1e-5, 1e-4]}]}
    gamma: {choice: [0.9, 0.99]}
    hiddens: {choice: [[64], [{randint: [32, 256]}]]}
    env_config:
      game: {choice: [{speed: {choice: [1, {uniform: [2, 3]}]}, wind: {choice: [{uniform: [0, 1]}]}}, {speed: 4}]}"""
    assert sweep(EXPLORATION + lines).sweeps[0].space.column_data() == {
        "exploration_config.type": {"choice": ["EpsilonGreedy", "SoftQ"]},
        "exploration_config.final_epsilon": {"uniform": [0.01, 0.1]},
        "exploration_config.temperature": {"loguniform": [0.1, 10]},
        "gamma": {"choice": [0.9, 0.99]},
        "env_config.game.wind": {"uniform": [0, 1]},
    }


def test_moved_value_keeps_its_alternative() -> None:
    first, second = NESTED.moved([64, 100], 1.2, Random(0))
    assert first == 64
    assert second in set(range(32, 256)) - {100}
    group = NESTED.moved({"a": True, "b": 0.5}, 1.2, Random(0))
    assert set(group) == {"a", "b"}
    assert group["a"] is True
    assert 0.5 != group["b"] != pytest.approx(0.5, abs=0.05)
    assert NESTED.moved(None, 1.2, Random(0)) is None


DISTINCT_LAYER = Range("randint", (3, 6), 3, 5, step=1)
LAYERS = Alternatives(
    "choice",
    [
        Alternative([64], {}),
        Alternative([{}, {}], {(0,): DISTINCT_LAYER, (1,): DISTINCT_LAYER}),
        Alternative(
            {"a": {}}, {("a",): Alternatives("choice", [Alternative({}, {(): DISTINCT_LAYER}), Alternative(None, {})])}
        ),
    ],
)
COUNTED: list[tuple[Domain, int]] = [
    (Listed("choice", [1, 1.0, True, "1", [2], [2]]), 4),
    (Range("randint", (1, 9), 1, 8, step=1), 8),
    (Range("lograndint", (3, 20), 3, 19, True, 1), 17),
    (Range("quniform", (0.5, 2.0, 0.25), 0.5, 2.0, step=0.25), 7),
    (Range("quniform", (8, 64, 8), 8, 64, step=8), 8),
    (Range("uniform", (0.99, 0.999), 0.99, 0.999), 91),
    (LAYERS, 1 + 3 * 3 + 3 + 1),
    (Range("uniform", (9.99, 10.03), 9.99, 10.03), 14),  # 9.990 to 9.999, and 10.00 to 10.03
    (Range("uniform", (-0.999, -0.99), -0.999, -0.99), 91),
    (Range("uniform", (0.12344, 0.1237), 0.12344, 0.1237), 4),  # its low end is what 0.1234 is limited to
]


@pytest.mark.parametrize(("domain", "count"), COUNTED)
def test_every_value_and_no_other_is_drawn(domain: Domain, count: int) -> None:
    listed = [identity(value) for value in every_value(domain)]
    rng = Random(0)
    drawn = {identity(domain.draw(rng)) for _ in range(200 * count)}
    assert number_of_values(domain) == len(listed) == len(set(listed)) == count
    assert drawn <= set(listed)
    assert len(drawn) > 0.9 * count


def test_log_range_has_as_many_values_in_each_decade() -> None:
    domain = Range("loguniform", (1e-4, 1e-2), 1e-4, 1e-2, is_log=True)
    values = list(every_value(domain))
    assert number_of_values(domain) == len(values) == 18_001
    assert values == sorted(set(values))


def test_conditional_space_is_continuous_where_a_range_inside_is() -> None:
    rate = Range("uniform", (0.99, 0.999), 0.99, 0.999)
    assert not is_continuous(LAYERS)
    assert is_continuous(Alternatives("choice", [Alternative(1, {}), Alternative({}, {(): rate})]))
    assert number_of_values(Alternatives("choice", [Alternative({}, {(): Normal(0, 1)})])) is None


def test_value_of_several_alternatives_is_listed_once() -> None:
    twice = Alternatives("choice", [Alternative(4, {}), Alternative({}, {(): DISTINCT_LAYER})])
    assert list(every_value(twice)) == [4, 3, 5]


@pytest.mark.parametrize("domain", [Normal(0.0, 1.0), Range("uniform", (-1, 1), -1, 1), Range("uniform", (0, 1), 0, 1)])
def test_numbers_around_zero_have_no_bound(domain: Domain) -> None:
    assert number_of_values(domain) is None
    assert is_continuous(domain)
