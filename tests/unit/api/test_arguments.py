"""Arguments of the public functions: a wrong type is a UsageError that names the argument, and nothing is loaded.

``rlexp.load``: files, and dicts whose values and errors are those of Python.

``import rlexp`` is light, and its functions stay what they are.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlexp
import rlexp.compare.curve
from rlexp.api.arguments import CHECKS
from rlexp.api.experiments import SingleExperiment, naming_arguments
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.load import load_plan
from rlexp.errors import ConfigError, Problem, UsageError
from tests.lab.envs import CountingEnv

FUNCTIONS = [getattr(rlexp, name) for name in rlexp.__all__ if not name.startswith("_")]
ANYTHING: list[Any] = [
    None,
    5,
    -1,
    0.5,
    True,
    "\0",
    b"x",
    [5],
    [None],
    [],
    {5: 5},
    {},
    Path("/nowhere"),
    "x",
    object(),
    10**400,
]
ALLOWED: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | Path": (str, Path),
    "str | type": (str,),
    "Mapping[str, Any]": (dict,),
    "bool": (bool,),
    "int": (),
    "Sequence[str]": (),
    "Experiments": (str, Path, dict),
}
"""What of ANYTHING an annotation allows, apart from None, a NUL, and 5 for a number."""


def parameters() -> Iterator[tuple[Any, str]]:
    for function in FUNCTIONS:
        yield from ((function, name) for name in inspect.signature(function).parameters)


def wrong_values(annotation: str) -> Iterator[Any]:
    kind = annotation.removesuffix(" | None")
    for value in ANYTHING:
        is_none = value is None and annotation.endswith(" | None")
        is_number = kind == "int" and value == 5
        is_empty_list = kind == "Sequence[str]" and value == []
        is_allowed = isinstance(value, ALLOWED[kind]) and value != "\0"
        if not (is_none or is_number or is_empty_list or is_allowed):
            yield value


@pytest.mark.parametrize(("function", "name"), list(parameters()), ids=lambda part: getattr(part, "__name__", part))
def test_wrong_type_names_the_argument(function: Any, name: str) -> None:
    parameter = inspect.signature(function).parameters[name]
    first = next(iter(inspect.signature(function).parameters))
    is_list = parameter.kind is parameter.VAR_POSITIONAL
    for value in wrong_values(parameter.annotation):
        given, named = ((value,), {}) if is_list else ((), {first: "nowhere", name: value})
        with pytest.raises(UsageError, match=rf"^{name}(\[0\])? must be .*, got ") as caught:
            function(*given, **named)
        assert len(caught.value.message) < 250


def test_every_annotation_has_a_check() -> None:
    found = {inspect.signature(f).parameters[name].annotation.removesuffix(" | None") for f, name in parameters()}
    assert found == set(CHECKS) == set(ALLOWED)


def test_numbers_of_numpy_are_those_of_python() -> None:
    (loaded,) = rlexp.load({"a": {"run": "DQN", "env": "CartPole-v1"}}, seed=np.int64(3), overrides=iter(["lr=1e-3"]))  # type: ignore[arg-type]
    assert (loaded.config.seed, type(loaded.config.seed), loaded.config.lr) == (3, int, 1e-3)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True])
def test_seed_is_one_that_every_library_takes(seed: Any) -> None:
    with pytest.raises(UsageError, match="seed must be a whole number from 0 to 4294967295 or None, got "):
        rlexp.load_policy("nowhere", seed=seed)


def experiment(**config: Any) -> dict[str, Any]:
    return {"run": "DQN", "env": "CartPole-v1", "stop": {"timesteps_total": 1000}, "config": {"seed": 1, **config}}


def problems(experiments: Any, **options: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        rlexp.load(experiments, **options)
    return [(problem.where, problem.message) for problem in caught.value.problems]


def test_dict_is_read_as_the_file_with_the_same_text(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "a:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 1000}\n"
        "  config: {seed: 1, lr: {grid_search: [1e-3, 1e-4]}, model: {fcnet_hiddens: [16, 8]}, double_q: false}\n"
    )
    grid = {"grid_search": [1e-3, 1e-4]}
    given = experiment(lr=grid, model={"fcnet_hiddens": (np.int64(16), 8)}, double_q=np.bool_(False))
    from_dict, from_file = rlexp.load({"a": given}), rlexp.load(file)
    assert from_dict.to_yaml() == from_file.to_yaml()
    assert [trial.name for trial in from_dict.trials] == [trial.name for trial in from_file.trials]


def test_loaded_experiments_are_models_with_every_key() -> None:
    both = {"a": experiment(lr=1e-3, gamma=0.9), "b": {**experiment(), "num_samples": 3}}
    loaded = rlexp.load(both, overrides=["gamma=0.5"])
    a, b = loaded
    assert (len(loaded), loaded["b"], loaded[0]) == (2, b, a)
    assert (a.name, a.run, a.env, dict(a.stop)) == ("a", "DQN", "CartPole-v1", {"timesteps_total": 1000})
    assert isinstance(a.config, DQNConfig)
    assert (a.config.lr, a.config.gamma) == (1e-3, 0.5)
    assert (len(a.trials), len(b.trials)) == (1, 3)
    assert repr(loaded) == "<2 experiments: a (DQN, CartPole-v1, 1 trials), b (DQN, CartPole-v1, 3 trials)>"
    with pytest.raises(KeyError, match="no experiment 'c'; there are a, b"):
        loaded["c"]


def test_arrays_and_numbers_of_numpy_become_plain() -> None:
    loaded = rlexp.load({"a": experiment(lr=np.float64(1e-4), model={"fcnet_hiddens": np.array([8, 4])})})
    config: Any = loaded["a"].config
    assert type(config.lr) is float
    assert config.model.fcnet_hiddens == (8, 4)


def test_strings_of_python_are_no_words_of_old_yaml() -> None:
    assert problems({"a": experiment(double_q="no")}) == [
        ('experiments["a"]["config"]["double_q"]', "config.double_q must be true or false, got the string 'no'")
    ]


def test_every_problem_is_named_by_its_subscript() -> None:
    wrong = experiment(lrr=1, lr=float("nan"), gamma=2, model={"fcnet_hiddens": [8, "x"]})
    assert problems({"a": wrong, "b": {"run": "DQM", "env": "CartPole-v1"}}) == [
        ('experiments["a"]["config"]["lrr"]', "unknown key config.lrr (agent DQN)"),
        ('experiments["a"]["config"]["lr"]', "config.lr must be a finite number, got nan"),
        ('experiments["a"]["config"]["gamma"]', "config.gamma must be a number >= 0 and <= 1, got 2"),
        (
            'experiments["a"]["config"]["model"]["fcnet_hiddens"][1]',
            "config.model.fcnet_hiddens[1] must be a whole number >= 1, got the string 'x'",
        ),
        ('experiments["b"]["run"]', "unknown agent DQM"),
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda step: 0.1, "must be a value that YAML has, got a function"),
        ({1, 2}, "must be a value that YAML has, got an object of builtins.set"),
        (10**400, "a number of more than 308 digits is too long"),
        ("\ud800", "\\ud800 to \\udfff are not characters"),
    ],
)
def test_values_that_no_file_could_hold(value: Any, message: str) -> None:
    assert problems({"a": experiment(lr=value)}) == [('experiments["a"]["config"]["lr"]', message)]


def test_dicts_that_contain_themselves_or_have_other_keys() -> None:
    config: dict[Any, Any] = {None: 1}
    config["model"] = {"fcnet_hiddens": config}
    found = problems({"a": {"run": "DQN", "env": "CartPole-v1", "config": config}})
    assert ('experiments["a"]["config"][None]', "a key must be a string, got NoneType") in found
    assert ('experiments["a"]["config"]["model"]["fcnet_hiddens"]', "contains itself") in found


def test_array_of_many_values_is_refused_at_its_key() -> None:
    where = 'experiments["a"]["config"]["model"]["fcnet_hiddens"]'
    for array in (np.ones((1000, 1000), np.int64), np.zeros((10_000, 10_000), np.int8)):
        assert problems({"a": experiment(model={"fcnet_hiddens": array})}) == [(where, "over 20000 values")]
    assert [message for _, message in problems({"a": experiment(lr=list(range(30_000)))})] == ["over 20000 values"]


def test_long_list_of_wrong_items_names_the_first_of_them() -> None:
    found = problems({"a": experiment(model={"fcnet_hiddens": np.ones((30, 130), np.int64)})})
    assert [message for _, message in found] == [
        f"config.model.fcnet_hiddens[{number}] must be a whole number >= 1, got a list" for number in range(5)
    ]
    with pytest.raises(ConfigError) as caught:
        rlexp.load({"a": experiment(model={"fcnet_hiddens": ["x" * 100] * 3_000})})
    assert len(str(caught.value)) < 5000


def test_experiment_without_a_name() -> None:
    message = "the experiment has no name: run, env, stop, config cannot be at the top level of the dict"
    assert problems(experiment()) == [('experiments["run"]', message)]


def test_class_of_a_module_is_named_for_other_processes() -> None:
    loaded = rlexp.load({"a": {**experiment(), "env": CountingEnv}})
    assert loaded["a"].env == "tests.lab.envs:CountingEnv"


def test_classes_that_other_processes_cannot_import() -> None:
    class Inside(CountingEnv):
        pass

    of_program = type("MyEnv", (CountingEnv,), {"__module__": "__main__"})
    for env, message in (
        (Inside, f"{__name__}.{Inside.__qualname__} cannot be imported by its name"),
        (of_program, "MyEnv is defined in the program that was started (or in a notebook), not in a module"),
    ):
        assert problems({"a": {**experiment(), "env": env}})[0] == ('experiments["a"]["env"]', message)


def test_missing_module_is_found_where_it_is_named() -> None:
    assert problems({"a": {**experiment(), "env": "no_such_module:Env"}}) == [
        ('experiments["a"]["env"]', "env no_such_module:Env: module no_such_module does not exist")
    ]


def test_old_keys_of_a_dict_have_notices() -> None:
    loaded = rlexp.load({"a": experiment(exploration_config={"type": "EpsilonGreedy"})})
    assert any(notice.where.startswith('experiments["a"]["config"]') for notice in loaded.notices)


LIBRARIES = {"gymnasium", "numpy", "pydantic", "ray", "rich", "torch", "typer", "yaml"}


def test_import_loads_only_pythons_own_libraries() -> None:
    program = f"import sys, rlexp; print(sorted({LIBRARIES} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_functions_have_signatures_and_docs() -> None:
    for name in rlexp.__all__:
        function = getattr(rlexp, name)
        if name != "__version__":
            assert inspect.isfunction(function), name
            assert inspect.getdoc(function), name
            assert inspect.signature(function).return_annotation is not inspect.Parameter.empty, name


def test_package_of_results_does_not_replace_the_function() -> None:
    program = "import rlexp; import rlexp.compare.table; print(rlexp.results.__name__, callable(rlexp.results))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "results True\n"


def test_hints_are_in_what_a_traceback_shows() -> None:
    with pytest.raises(ConfigError) as caught:
        rlexp.load({"a": experiment(lrr=1)})
    assert (
        str(caught.value)
        == 'experiments["a"]["config"]["lrr"]  unknown key config.lrr (agent DQN)\n    hint: did you mean lr?'
    )
    with pytest.raises(UsageError) as other:
        rlexp.run(5)  # type: ignore[arg-type]
    assert other.value.__notes__ == [f"hint: {other.value.hint}"]


def test_one_experiment_needs_env_and_algo_and_nothing_beside_it() -> None:
    for given, message in (
        ({"env": "CartPole-v1"}, "algo is missing"),
        ({"algo": "DQN"}, "env is missing"),
        ({}, "env is missing"),
        ({"experiments": "a.yaml", "config": {}}, "config is given beside experiments"),
        ({"env": 3, "algo": "DQN"}, "env must be a string"),
        ({"env": "CartPole-v1", "algo": "DQN", "config": [1]}, "config must be a dict or None"),
    ):
        with pytest.raises(UsageError, match=message):
            rlexp.run(**given)


def test_errors_of_a_single_experiment_name_arguments() -> None:
    places = ["--algo PPOO", "--env x y", "-o config.model.dim=3", '-o stop={"reward": 1}', "f.yaml:3:1"]
    error = naming_arguments(ConfigError([Problem(place, "wrong") for place in places]))
    expected = ['algo="PPOO"', 'env="x y"', 'config["model.dim"]', "stop", "f.yaml:3:1"]
    assert [problem.where for problem in error.problems] == expected
    assert naming_arguments(other := UsageError("wrong")) is other


def test_an_unknown_argument_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'environment'"):
        rlexp.run(environment="CartPole-v1")  # type: ignore[call-arg]


def test_a_single_experiment_is_a_preset_with_overrides(tmp_path: Path) -> None:
    config = {"lr": np.float64(0.001), "model": {"fcnet_hiddens": [64]}, "callbacks": CountingEnv}
    source, overrides = SingleExperiment(CountingEnv, "DQN", {"timesteps_total": 10}, config).source(tmp_path)
    assert (source.agent, source.env) == ("DQN", "tests.lab.envs:CountingEnv")
    assert source.folders
    assert overrides == (
        "config.lr=0.001",
        'config.model={"fcnet_hiddens": [64]}',
        'config.callbacks="tests.lab.envs:CountingEnv"',
        'stop={"timesteps_total": 10}',
    )
    assert SingleExperiment("CartPole-v1", "PPO", None, None).source(tmp_path)[1] == ()
    with pytest.raises(ConfigError, match="must be a value that YAML has"):
        SingleExperiment("CartPole-v1", "PPO", None, {"lr": object()}).source(tmp_path)


@pytest.mark.parametrize("text", ["\U0001f600 \u200d \x85 \u2028 \ufeff \x7f", 'a "quoted" \\ud83d one'])
def test_any_text_arrives_as_it_was_given(text: str, tmp_path: Path) -> None:
    single = SingleExperiment(CountingEnv, "DQN", None, {"env_config": {"a": text}})
    _, (override,) = single.source(tmp_path)
    (tmp_path / "f.yaml").write_text("a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 1}}")
    plan = load_plan([tmp_path / "f.yaml"], [override])
    assert plan.trials[0].experiment.config.env_config == {"a": text}


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_refused(number: float, tmp_path: Path) -> None:
    single = SingleExperiment(CountingEnv, "DQN", None, {"env_config": {"a": [number]}})
    with pytest.raises(ConfigError, match="has a number that is not finite") as caught:
        single.source(tmp_path)
    assert caught.value.problems[0].where == 'config["env_config"]'
