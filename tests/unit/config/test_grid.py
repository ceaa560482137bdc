"""Grids to trials: every variant once, with a safe name and its seed."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.keys.trial import MAX_NAME_LENGTH, sample_seed, trial_name
from rlexp.config.load import Plan, load_plan
from rlexp.errors import ConfigError

Load = Callable[..., Plan]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Plan one experiment, given the lines after ``run`` and ``env``."""
    monkeypatch.chdir(tmp_path)

    def to_plan(lines: str, seed: int | None = None) -> Plan:
        Path("f.yaml").write_text(f"a:\n  run: APEX\n{lines}\n")
        return load_plan(["f.yaml"], seed=seed)

    return to_plan


def message(load: Load, lines: str) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(lines)
    assert len(caught.value.problems) == 1, caught.value
    return caught.value.problems[0].where, caught.value.problems[0].message


def test_grid_spans_all_variants_last_key_fastest(load: Load) -> None:
    plan = load("  env: CartPole-v1\n  config: {lr: {grid_search: [1e-3, 1e-4]}, n_step: {grid_search: [1, 3]}}")
    assert [trial.varied for trial in plan.trials] == [
        {"lr": lr, "n_step": n_step} for lr, n_step in product((1e-3, 1e-4), (1, 3))
    ]
    assert [(trial.experiment.config.lr, trial.index) for trial in plan.trials][1:3] == [(1e-3, 1), (1e-4, 2)]


def test_grid_at_any_depth(load: Load) -> None:
    plan = load(
        "  env: {grid_search: [CartPole-v1, 'a.b:C']}\n  stop: {timesteps_total: {grid_search: [1, 2.5]}}\n"
        "  config: {optimizer: {debug: {grid_search: [false, true]}}, "
        "model: {fcnet_hiddens: [{grid_search: [8, 16]}, 4]}}"
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


def test_grid_at_flat_optimizer_key(load: Load) -> None:
    plan = load("  env: CartPole-v1\n  config: {num_replay_buffer_shards: {grid_search: [1, 2]}}")
    assert [trial.varied for trial in plan.trials] == [{"optimizer.num_replay_buffer_shards": n} for n in (1, 2)]


def test_grid_inside_grid_choice_is_expanded(load: Load) -> None:
    plan = load(
        "  env: CartPole-v1\n  config: {model: {grid_search: [{}, {fcnet_activation: {grid_search: [relu, elu]}}]}}"
    )
    assert [trial.varied["model"]["fcnet_activation"] for trial in plan.trials] == ["tanh", "relu", "elu"]


def test_num_samples_repeat_grid_with_other_seeds(load: Load) -> None:
    plan = load("  env: CartPole-v1\n  num_samples: 2\n  config: {seed: 5, lr: {grid_search: [1, 2]}}")
    assert [(trial.varied["lr"], trial.sample) for trial in plan.trials] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    seeds = [trial.experiment.config.seed for trial in plan.trials]
    assert seeds == [5, 5, sample_seed(5, 1), sample_seed(5, 1)]
    assert len({5, sample_seed(5, 1), sample_seed(5, 2), sample_seed(6, 1)}) == 4
    assert {trial.experiment.num_samples for trial in plan.trials} == {1}


def test_fresh_seed_is_shared_by_variants(load: Load) -> None:
    def seeds() -> set[int | None]:
        plan = load("  env: CartPole-v1\n  config: {lr: {grid_search: [1, 2]}}")
        assert len({trial.experiment.config.seed for trial in plan.trials}) == 1
        return {trial.experiment.config.seed for trial in plan.trials}

    assert seeds() != seeds()
    assert seeds() != {None}


@pytest.mark.parametrize(
    ("config", "where", "text"),
    [
        ("{lr: {grid_search: [1, 2, -3]}}", "f.yaml:4:37", "config.lr must be a number > 0, got -3"),
        ("{lr: {grid_search: 3}}", "f.yaml:4:30", "config.lr: grid_search needs a list of values"),
        ("{lr: {grid_search: []}}", "f.yaml:4:30", "config.lr: grid_search needs a list of values"),
        ("{lr: {grid_search: [1], x: 2}}", "f.yaml:4:17", "config.lr: grid_search must be the only key here"),
        (
            "{train_batch_size: {grid_search: [8, 3000000]}}",
            "f.yaml:4:48",
            "config.train_batch_size is 3000000, more than buffer_size, which is 2000000",
        ),
    ],
)
def test_grid_problems_have_places(load: Load, config: str, where: str, text: str) -> None:
    assert message(load, f"  env: CartPole-v1\n  config: {config}") == (where, text)


def test_num_samples_cannot_be_searched(load: Load) -> None:
    where, text = message(load, "  env: CartPole-v1\n  num_samples: {grid_search: [1, 2]}")
    assert (where, text) == ("f.yaml:4:17", "num_samples cannot be searched")


def test_huge_grid_is_refused_before_expansion(load: Load) -> None:
    axes = ", ".join(f"a{number}: {{grid_search: [{', '.join(map(str, range(100)))}]}}" for number in range(20))
    where, text = message(load, f"  env: CartPole-v1\n  config: {{env_config: {{{axes}}}}}")
    assert (where, text) == ("f.yaml:1:1", f"the grid has {100**20} variants, more than 10000")


def test_huge_num_samples_is_refused(load: Load) -> None:
    where, text = message(load, "  env: CartPole-v1\n  num_samples: 10001")
    assert (where, text) == ("f.yaml:1:1", "with a there are 10001 trials, more than 10000")


def test_trial_names_have_varied_values(load: Load) -> None:
    plan = load(
        "  env: {grid_search: [ALE/Pong-v5]}\n  num_samples: 2\n"
        "  config: {lr: {grid_search: [0.001]}, model: {fcnet_hiddens: {grid_search: [[64, 64]]}}}"
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
