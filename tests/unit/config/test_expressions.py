"""Arithmetic in files: what it computes, and everything that it must not do."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.config.load import Plan, load_plan, resolved_yaml
from rlexp.config.space.expressions import ExpressionError, evaluated
from rlexp.errors import ConfigError

SPEC = {("config", "num_workers"): 8, ("config", "lr"): 0.1, ("env",): "Pong"}


def lookup(path: tuple[str, ...]) -> Any:
    if path not in SPEC:
        raise ExpressionError(f"names {path}")
    return SPEC[path]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4 + spec.config.num_workers", 12),
        ("lambda spec: spec.config.num_workers * 2", 16),
        ("spec.config.lr / 2", 0.05),
        ("-spec.config.num_workers // 3 + 2 ** 3", 5),
        ("7 % 4 + int(3.9)", 6),
        ("max(1, spec.config.num_workers - 10)", 1),
        ("math.ceil(spec.config.num_workers / 3)", 3),
        ("2 if spec.env == 'Pong' else 3", 2),
        ("1 < 2 <= 2 and not False", True),
        ("[spec.config.num_workers, (1, 2)]", [8, [1, 2]]),
        ("None", None),
    ],
)
def test_evaluated_values(text: str, value: Any) -> None:
    assert evaluated(text, lookup) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__[0].__subclasses__()",
        "spec.__class__",
        "spec.config.nothing",
        "open('/etc/passwd')",
        "(lambda: 0)()",
        "[x for x in (1, 2)]",
        "random.uniform(0, 1)",
        "np.random.choice([1])",
        "'a' * 1000000000",
        "[0] * 1000000000",
        "9 ** 9 ** 9",
        "10 ** 1000",
        "1 / 0",
        "max()",
        "round('a')",
        "min(1, key=int)",
        "1 +",
        "x",
        "f'{1}'",
        "1j",
        "1e400",
        "int('9' * 5000)",
        "spec.config.lr.real",
        "(" * 500 + ")" * 500,
        "1+" * 2000 + "1",
        "",
    ],
)
def test_evaluated_refuses_other_syntax_fast(text: str) -> None:
    started = time.monotonic()
    with pytest.raises(ExpressionError):
        evaluated(text, lookup)
    assert time.monotonic() - started < 1


@given(st.text(alphabet="0123456789+-*/%()<>=., specconfiglr_xyz'[]{}:", max_size=60))
def test_evaluated_any_text_raises_expression_error_only(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        evaluated(text, lookup)


Load = Callable[[str], Plan]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def to_plan(config: str) -> Plan:
        Path("f.yaml").write_text(f"a:\n  run: DQN\n  env: CartPole-v1\n  stop: {{}}\n  config: {config}\n")
        return load_plan(["f.yaml"])

    return to_plan


def test_eval_is_computed_in_each_variant(load: Load) -> None:
    plan = load("{num_env_runners: {grid_search: [2, 4]}, train_batch_size: {eval: spec.config.num_workers * 16}}")
    assert [trial.experiment.config.train_batch_size for trial in plan.trials] == [32, 64]
    assert [trial.varied for trial in plan.trials] == [{"num_workers": 2}, {"num_workers": 4}]
    Path("f.yaml").write_text(resolved_yaml(plan))
    assert resolved_yaml(load_plan(["f.yaml"])) == resolved_yaml(plan)


def test_eval_sees_defaults_and_old_names(load: Load) -> None:
    plan = load("{train_batch_size: {eval: 'spec.config.rollout_fragment_length * spec.config.n_step * 8'}}")
    assert plan.trials[0].experiment.config.train_batch_size == 32


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("{eval: spec.config.nothing}", "config.lr: the expression uses spec.config.nothing"),
        ("{eval: 'random.uniform(0, 1)'}", "config.lr: the expression is random"),
        ("{sample_from: 'lambda spec: 3'}", "config.lr: sample_from is random"),
    ],
)
def test_eval_problems_have_places(load: Load, value: str, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{{lr: {value}}}")
    problem = caught.value.problems[0]
    assert problem.where.startswith("f.yaml:5:")
    assert problem.message.startswith(start)
    assert problem.hint
