"""Samplers: what they may stand for, what their draws are, and what is wrong with those that mean nothing.

Grids to trials: every variant once, with a safe name and its seed.
"""

import math
import re
from functools import partial
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.domains import Domain, Listed, Normal, Range, read_sampler
from rlexp.config.keys.trial import MAX_NAME_LENGTH, sample_seed, trial_name
from rlexp.config.load import resolved_yaml
from rlexp.config.translation import node_of
from rlexp.config.yaml.nodes import Node, Place
from tests.lab.experiment_files import Load, messages, planned, problems


@pytest.fixture
def load_apex(load: Load) -> Load:
    """Plan one experiment of Ape-X, with a fresh seed."""
    return partial(load, run="APEX", seed=None)


def test_grid_spans_all_variants_last_key_fastest(load_apex: Load) -> None:
    plan = load_apex("lr: {grid_search: [1e-3, 1e-4]}, n_step: {grid_search: [1, 3]}")
    assert [trial.varied for trial in plan.trials] == [
        {"lr": lr, "n_step": n_step} for lr, n_step in product((1e-3, 1e-4), (1, 3))
    ]
    assert [(trial.experiment.config.lr, trial.index) for trial in plan.trials][1:3] == [(1e-3, 1), (1e-4, 2)]


def test_grid_at_any_depth(load_apex: Load) -> None:
    plan = load_apex(
        "debug: {grid_search: [false, true]}, model: {fcnet_hiddens: [{grid_search: [8, 16]}, 4]}",
        "stop={timesteps_total: {grid_search: [1, 2.5]}}",
        env="{grid_search: [CartPole-v1, 'a.b:C']}",
    )
    assert len(plan.trials) == 16
    assert plan.trials[-1].varied == {
        "env": "a.b:C",
        "stop.timesteps_total": 2.5,
        "optimizer.debug": True,
        "model.fcnet_hiddens[0]": 16,
    }
    assert plan.trials[-1].experiment.config.model.fcnet_hiddens == (16, 4)
    assert plan.trials[-1].experiment.stop == {"timesteps_total": 2.5}


def test_grid_inside_grid_choice_is_expanded(load_apex: Load) -> None:
    plan = load_apex("model: {grid_search: [{}, {fcnet_activation: {grid_search: [relu, elu]}}]}")
    assert [trial.varied["model"]["fcnet_activation"] for trial in plan.trials] == ["tanh", "relu", "elu"]


def test_num_samples_repeat_grid_with_other_seeds(load_apex: Load) -> None:
    plan = load_apex("seed: 5, lr: {grid_search: [1, 2]}", beside="  num_samples: 2\n")
    assert [(trial.varied["lr"], trial.sample) for trial in plan.trials] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    seeds = [trial.experiment.config.seed for trial in plan.trials]
    assert seeds == [5, 5, sample_seed(5, 1), sample_seed(5, 1)]
    assert len({5, sample_seed(5, 1), sample_seed(5, 2), sample_seed(6, 1)}) == 4
    assert {trial.experiment.num_samples for trial in plan.trials} == {1}


def test_fresh_seed_is_shared_by_variants(load_apex: Load) -> None:
    def seeds() -> set[int | None]:
        plan = load_apex("lr: {grid_search: [1, 2]}")
        assert len({trial.experiment.config.seed for trial in plan.trials}) == 1
        return {trial.experiment.config.seed for trial in plan.trials}

    assert seeds() != seeds()
    assert seeds() != {None}


@pytest.mark.parametrize(
    ("config", "where", "text"),
    [
        ("lr: {grid_search: [1, 2, -3]}", "f.yaml:5:37", "config.lr must be a number > 0, got -3"),
        ("lr: {grid_search: 3}", "f.yaml:5:30", "config.lr: grid_search needs a list of values"),
        ("lr: {grid_search: []}", "f.yaml:5:30", "config.lr: grid_search needs a list of values"),
        ("lr: {grid_search: [1], x: 2}", "f.yaml:5:17", "config.lr: grid_search must be the only key here"),
        (
            "train_batch_size: {grid_search: [8, 3000000]}",
            "f.yaml:5:48",
            "config.train_batch_size is 3000000, more than buffer_size, which is 2000000",
        ),
    ],
)
def test_grid_problems_have_places(load_apex: Load, config: str, where: str, text: str) -> None:
    ((*found, _),) = problems(load_apex, config)
    assert found == [where, text]


@pytest.mark.parametrize(
    ("number", "where", "text"),
    [
        ("{grid_search: [1, 2]}", "f.yaml:5:17", "num_samples cannot be searched"),
        ("10001", "f.yaml:1:1", "with a there are 10001 trials, more than 10000"),
    ],
)
def test_wrong_numbers_of_samples_are_refused(load_apex: Load, number: str, where: str, text: str) -> None:
    ((*found, _),) = problems(load_apex, beside=f"  num_samples: {number}\n")
    assert found == [where, text]


def test_huge_grid_is_refused_before_expansion(load_apex: Load) -> None:
    axes = ", ".join(f"a{number}: {{grid_search: [{', '.join(map(str, range(100)))}]}}" for number in range(20))
    ((*found, _),) = problems(load_apex, f"env_config: {{{axes}}}")
    assert found == ["f.yaml:1:1", f"the grid has {100**20} variants, more than 10000"]


def test_trial_names_have_varied_values(load_apex: Load) -> None:
    plan = load_apex(
        "lr: {grid_search: [0.001]}, model: {fcnet_hiddens: {grid_search: [[64, 64]]}}",
        env="{grid_search: [ALE/Pong-v5]}",
        beside="  num_samples: 2\n",
    )
    assert [trial.name for trial in plan.trials] == [
        "00000-APEX-ALE_Pong-v5-lr=0.001,model.fcnet_hiddens=64+64",
        "00001-APEX-ALE_Pong-v5-lr=0.001,model.fcnet_hiddens=64+64-sample=1",
    ]


@settings(deadline=None)
@given(st.integers(0, 99_999), st.text(), st.dictionaries(st.text(), st.text() | st.floats()), st.integers(0, 9999))
def test_trial_names_are_safe_folder_names(index: int, env: str, varied: dict[str, object], sample: int) -> None:
    name = trial_name(index, "APEX", env, varied, sample)
    assert re.fullmatch(r"[0-9]{5}[A-Za-z0-9._,=+-]+", name)
    assert len(name) <= MAX_NAME_LENGTH
    assert name.startswith(f"{index:05d}-APEX")
    assert not sample or name.endswith(f"-sample={sample}")


HERE = Node(None, Place("f.yaml", 1, 1), Place("f.yaml", 1, 1))


def domain(name: str, *arguments: float) -> Domain:
    return read_sampler(name, node_of(list(arguments), HERE)).domain


def test_randint_draws_each_number_equally() -> None:
    rng, numbers = Random(1), domain("randint", 3, 6)
    draws = [numbers.draw(rng) for _ in range(3000)]
    assert {number: round(draws.count(number) / 3000, 1) for number in sorted(set(draws))} == {3: 0.3, 4: 0.3, 5: 0.3}
    assert {type(number) for number in draws} == {int}


def test_loguniform_draws_each_decade_equally() -> None:
    rng, rates = Random(1), domain("loguniform", 1e-5, 1e-2)
    decades = [math.floor(math.log10(rates.draw(rng))) for _ in range(3000)]
    assert {decade: round(decades.count(decade) / 3000, 1) for decade in set(decades)} == {-5: 0.3, -4: 0.3, -3: 0.3}


def test_lograndint_draws_small_numbers_more_often() -> None:
    rng, sizes = Random(1), domain("lograndint", 1, 1001)
    draws = [sizes.draw(rng) for _ in range(3000)]
    assert all(isinstance(number, int) and 1 <= number <= 1000 for number in draws)
    assert 0.5 < sum(number <= 50 for number in draws) / 3000 < 0.75


@given(st.integers(0, 2**32))
def test_quniform_draws_multiples(seed: int) -> None:
    assert domain("quniform", 0.05, 0.95, 0.1).draw(Random(seed)) in [round(0.1 * n, 1) for n in range(1, 10)]
    whole = domain("quniform", 30, 130, 32.0).draw(Random(seed))
    assert isinstance(whole, int)
    assert whole in (32, 64, 96, 128)


def test_randn_has_its_mean_and_deviation_and_no_far_tails() -> None:
    rng, normal = Random(1), domain("randn", 2.0, 0.5)
    draws = [normal.draw(rng) for _ in range(4000)]
    assert isinstance(normal, Normal)
    assert sum(draws) / 4000 == pytest.approx(2.0, abs=0.05)
    assert min(draws) >= normal.ends[0] == 0.0
    assert max(draws) <= normal.ends[1] == 4.0


def moves(moved: Domain, value: Any, factor: float = 1.2) -> set[Any]:
    """Return where a value can be moved to."""
    return {moved.moved(value, factor, Random(seed)) for seed in range(20)}


def test_moved_number_changes_by_a_share_of_its_range() -> None:
    assert moves(domain("uniform", 0.9, 0.999), 0.95) == {0.9302, 0.9698}
    assert moves(domain("uniform", 0.9, 0.999), 0.999) == {0.9792}
    assert moves(domain("uniform", 0.0, 10.0), 0.0) == {2.0}
    assert moves(domain("uniform", -1.0, 1.0), 0.0, 1.05) == {-0.1, 0.1}
    assert moves(domain("quniform", 0.0, 1.0, 0.25), 0.5) == {0.25, 0.75}
    assert moves(domain("randint", 1, 6), 1) == {2}
    assert moves(domain("randint", 1, 6), 3) == {2, 4}
    assert moves(domain("randint", 0, 101), 50) == {30, 70}
    assert moves(domain("randn", 2.0, 0.5), 2.0) == {1.6, 2.4}


def test_moved_logarithmic_number_is_multiplied_or_divided() -> None:
    rates = domain("loguniform", 1e-4, 1e-2)
    assert moves(rates, 1.2e-3) == {1e-3, 1.44e-3}
    assert moves(rates, 1e-2) == {8.333e-3}
    assert moves(rates, 9e-3) == {7.5e-3}
    assert moves(domain("lograndint", 1, 1001), 1) == {2}
    assert moves(domain("lograndint", 1, 1001), 100) == {83, 120}
    assert moves(domain("loguniform", 0.9, 0.999), 0.95) == {0.9304, 0.97}, "inside a narrow range"


def test_moved_value_of_a_list_is_a_neighbour() -> None:
    listed = Listed("choice", [8, 16, 16, 32])
    assert [moves(listed, value) for value in (8, 16, 32)] == [{16}, {8, 32}, {16}]
    assert moves(Listed("choice", [8]), 8) == {8}


@st.composite
def ranges(draw: st.DrawFn) -> Range | Normal:
    sampler = draw(st.sampled_from(["uniform", "loguniform", "quniform", "randint", "lograndint", "randn"]))
    start, width = draw(st.integers(1, 1000)), draw(st.integers(2, 1000))
    low, length = draw(st.floats(0.001, 100)), draw(st.floats(0.01, 100))
    arguments = {
        "randint": (start, start + width),
        "lograndint": (start, start + width),
        "randn": (low, length),
        "quniform": (low, low + length, length / 8),
    }
    made = domain(sampler, *arguments.get(sampler, (low, low + length)))
    assert isinstance(made, Range | Normal)
    return made


@given(ranges(), st.floats(1.01, 5.0), st.integers(0, 2**32))
def test_moved_number_is_another_one_inside(numbers: Range | Normal, factor: float, seed: int) -> None:
    rng = Random(seed)
    value = numbers.draw(rng)
    low, high = numbers.ends if isinstance(numbers, Normal) else (numbers.low, numbers.high)
    assert low <= value <= high
    for _ in range(20):
        moved = numbers.moved(value, factor, rng)
        assert moved != value
        assert low <= moved <= high
        value = moved


@settings(deadline=None)
@given(st.sampled_from(["uniform", "loguniform"]), st.floats(1, 100), st.floats(0.01, 10), st.integers(0, 2**32))
def test_repeated_moves_come_within_one_move_of_every_value(name: str, low: float, width: float, seed: int) -> None:
    rng, numbers = Random(seed), domain(name, low, low + width)
    place = math.log if name == "loguniform" else float
    values = [numbers.draw(rng)]
    for _ in range(1000):
        values.append(numbers.moved(values[-1], 1.2, rng))
    ends = place(low), place(low + width)
    move = 0.2 * (ends[1] - ends[0]) if name == "uniform" else min(0.2 * (ends[1] - ends[0]), math.log(1.2))
    rounding = 1e-3 * (1 if name == "loguniform" else low + width)
    reached = sorted({*ends, *map(place, values)})
    assert max(after - before for before, after in pairwise(reached)) < 1.1 * move + rounding


@settings(deadline=None)
@given(st.lists(st.integers(), min_size=2, unique=True, max_size=8), st.integers(0, 2**32))
def test_repeated_moves_reach_every_value_of_a_list(values: list[int], seed: int) -> None:
    rng, listed = Random(seed), Listed("choice", values)
    value, reached = values[0], set()
    for _ in range(2000):
        reached.add(value)
        value = listed.moved(value, 1.2, rng)
    assert reached == set(values)


@pytest.mark.parametrize(
    ("value", "where", "text"),
    [
        ("{uniform: [-1, 1]}", "f.yaml:5:27", "config.lr must be a number > 0, got -1"),
        ("{loguniform: [-1, 1]}", "f.yaml:5:30", "config.lr: loguniform needs low > 0, got -1"),
        ("{uniform: [1, 1]}", "f.yaml:5:27", "config.lr: uniform needs low < high, got 1 and 1"),
        ("{uniform: [0.9]}", "f.yaml:5:26", "config.lr: uniform needs [low, high], got [0.9]"),
        ("{uniform: 3}", "f.yaml:5:26", "config.lr: uniform needs [low, high], got 3"),
        ("{uniform: [a, 3]}", "f.yaml:5:27", "config.lr: uniform needs numbers, [low, high]"),
        ("{quniform: [1, 2, 0]}", "f.yaml:5:34", "config.lr: quniform needs a quantum > 0, got 0"),
        (
            "{quniform: [0.1, 0.2, 1]}",
            "f.yaml:5:28",
            "config.lr: quniform: there is no multiple of 1 between 0.1 and 0.2",
        ),
        ("{randint: [1, 2]}", "f.yaml:5:27", "config.lr: randint has only one value, 1"),
        ("{randint: [1, 2.5]}", "f.yaml:5:30", "config.lr: randint needs whole numbers, got 2.5"),
        ("{randn: [1, 0]}", "f.yaml:5:28", "config.lr: randn needs a deviation > 0, got 0"),
        ("{randn: [1, 1]}", "f.yaml:5:25", "config.lr must be a number > 0, got -3"),
        ("{choice: []}", "f.yaml:5:25", "config.lr: choice needs a list of values"),
        ("{choice: [1e-3, -1]}", "f.yaml:5:32", "config.lr must be a number > 0, got -1"),
    ],
)
def test_sampler_problems_have_places(sweep: Load, value: str, where: str, text: str) -> None:
    ((found_where, message, _),) = problems(sweep, f"lr: {value}")
    assert found_where == where
    assert message.startswith(text)


def test_old_key_that_sets_another_one_is_searched_at_its_own_place(sweep: Load) -> None:
    plan = sweep("gpu: {choice: [true, false]}", beside="  search: {num_samples: 2}\n")
    assert plan.sweeps[0].space.keys == ("num_gpus",)
    assert sorted(trial.varied["num_gpus"] for trial in plan.trials) == [0, 1]
    assert all(trial.experiment.config.num_gpus == trial.varied["num_gpus"] for trial in plan.trials)


def test_conflicting_range_ends_are_refused(sweep: Load) -> None:
    lines = "train_batch_size: {randint: [8, 2000]}, buffer_size: {quniform: [500, 5000, 500]}"
    assert "more than buffer_size, which is 500" in problems(sweep, lines)[0][1]


def test_many_axes_check_every_pair_of_ends(sweep: Load) -> None:
    axes = ", ".join(f"x{number}: {{uniform: [0, 1]}}" for number in range(20))
    sizes = "train_batch_size: {randint: [8, 2000]}, buffer_size: {randint: [500, 5000]}"
    lines = f"env_config: {{{axes}}}, {sizes}"
    assert "more than buffer_size, which is 500" in problems(sweep, lines)[0][1]


def test_python_samplers_are_read(sweep: Load) -> None:
    plan = sweep(
        'lr: {sample_from: "lambda spec: random.uniform(5e-5, 1e-3)"}, '
        'n_step: {sample_from: "lambda _: random.randint(1, 5)"}, '
        'gamma: {eval: "tune.choice([0.9, 0.99])"}'
    )
    assert [axis.domain.data() for axis in plan.sweeps[0].space.axes] == [
        {"uniform": [5e-5, 1e-3]},
        {"randint": [1, 6]},
        {"choice": [0.9, 0.99]},
    ]


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("{eval: 4 + spec.config.num_workers}", "eval is not supported", "write the value itself, or grid_search"),
        ("{eval: 'np.random.choice([1]) + 1'}", "eval is not supported", "write the value itself, or grid_search"),
        ("{eval: 'tune.choice([1, 2])'}", "eval is random", "use rlexp sweep"),
        ("{uniform: [0.1, 1]}", "uniform is random, which rlexp run does not support", "use rlexp sweep"),
        ("{eval: '(32, 64)'}", "eval is not supported", "write [32, 64]"),
        ("{eval: 0.5}", "eval is not supported", "write 0.5"),
        ("{sample_from: 'lambda spec: 3'}", "sample_from is random", "use rlexp sweep"),
    ],
)
def test_arithmetic_is_refused_with_what_to_write(load: Load, value: str, message: str, hint: str) -> None:
    for lines, path in ((f"lr: {value}", "lr"), (f"model: {{fcnet_hiddens: [8, {value}]}}", "model.fcnet_hiddens[1]")):
        ((where, found, found_hint),) = problems(load, f"n_step: {{grid_search: [1, 2]}}, {lines}")
        column = len(f"  config: {{n_step: {{grid_search: [1, 2]}}, {lines}".partition(value)[0]) + 2
        assert where == f"f.yaml:5:{column}"
        assert found.startswith(f"config.{path}: {message}")
        assert (found_hint or "").startswith(hint)


def test_arithmetic_without_effect_has_a_notice(load_apex: Load) -> None:
    resources = "{cpu: 2, extra_cpu: {eval: 4 + spec.config.num_workers}}"
    config = "num_workers: 4, tf_session_args: {threads: {eval: 2 * 3}}"
    plan = load_apex(config, beside=f"  trial_resources: {resources}\n")
    notices = {notice.where: notice.message for notice in plan.notices}
    assert notices["f.yaml:5:41"].startswith("trial_resources.extra_cpu has no effect here: rlexp computes no")
    assert any(message.startswith("config.tf_session_args has no effect here") for message in notices.values())
    keys = plan.trials[0].experiment.config
    assert (keys.num_cpus_for_driver, keys.num_cpus_per_worker) == (2, 1)


def test_env_config_keys_named_like_samplers_are_kept(sweep: Load) -> None:
    for own_keys in ({"choice": 3}, {"eval": "1 + 1"}):
        plan = sweep(f"env_config: {own_keys}, lr: {{uniform: [1, 2]}}")
        assert plan.trials[0].experiment.config.env_config == own_keys


SEARCHED = "lr: {uniform: [0.1, 1]}"


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (
            "scheduler: hyperband, asha: {grace_period: 10}",
            ["f.yaml:5:34 search.asha has no effect: search.scheduler is hyperband"],
        ),
        ("pbt: {synch: true}", ["f.yaml:5:12 search.pbt has no effect: search.scheduler is fifo"]),
        ("optuna: {sampler: random}", ["f.yaml:5:12 search.optuna has no effect: search.searcher is random"]),
        ("searcher: optuna, optuna: {sampler: random}, scheduler: asha, asha: {grace_period: 10}", []),
    ],
)
def test_options_of_a_rule_that_was_not_chosen_have_a_notice(sweep: Load, search: str, said: list[str]) -> None:
    plan = sweep(SEARCHED, beside=f"  search: {{{search}}}\n")
    assert [f"{notice.where} {notice.message}" for notice in plan.notices if "no effect" in notice.message] == said


def test_resolved_sweep_has_no_notice_of_options(sweep: Load) -> None:
    again = planned(resolved_yaml(sweep(SEARCHED, beside="  search: {scheduler: median}\n")))
    assert not [message for message in messages(again) if "no effect" in message]
