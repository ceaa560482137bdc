"""Completion as shells ask for it: a process with the words in its environment.

Every option that takes a number refuses others: exit code 2, the option and its range, and no traceback.

``key=value`` words beside ``-o``: what they override, in which order, and how errors name them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.testing import CliRunner

from rlexp.cli import _PACKAGE, COMMANDS, app, summary_of
from rlexp.commands.command import OTHER_NAMES
from rlexp.errors import UsageError
from tests.cli.forked_commands import loaded_by, rlexp
from tests.lab.run_folders import MadeTrial, make_run

NO_NUMBERS = ["", "nan", "inf", "-inf", "x", "1e20", "1" * 30, "-" + "1" * 30, "9" * 5000, "0x10", "1,5", "None"]
ARGUMENTS = {"check": ["f"], "run": ["f"], "sweep": ["f"], "evaluate": ["d"], "logs": ["d"], "compare": ["d"]}


def functions() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command's words, and its function."""
    for name, module in COMMANDS.items():
        found = import_module(f"{_PACKAGE}.{module}")
        if name == "board":
            for command in found.board_app.registered_commands:
                yield (name, command.name or command.callback.__name__), command.callback
        else:
            yield (name,), getattr(found, name)


def numeric_options() -> Iterator[tuple[str, ...]]:
    """Yield the words of a command with an option of it that takes a number, from its declaration."""
    for words, function in functions():
        for hint in get_type_hints(function, include_extras=True).values():
            metadata = getattr(hint, "__metadata__", ())
            if metadata and re.search(r"\b(int|float)\b", str(hint.__origin__).replace("'", "")):
                yield (*words, (metadata[0].default, *metadata[0].param_decls)[0])


OPTIONS = sorted(set(numeric_options()))


def test_the_walk_finds_the_options() -> None:
    assert {("evaluate", "--episodes"), ("run", "--seed"), ("board", "serve", "--port")} <= set(OPTIONS)
    assert len(OPTIONS) >= 22


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_option_names_its_range_where_the_value_is_none_of_it(words: tuple[str, ...]) -> None:
    *command, option = words
    for text in NO_NUMBERS:
        result = CliRunner().invoke(app, [*command, f"{option}={text}", *ARGUMENTS.get(command[-1], ["x"])])
        assert isinstance(result.exception, UsageError), (text, result.exception, result.output)
        message = result.exception.message
        is_refused = re.match(rf"{option} must be a (whole )?number from \S+ to \S+, got ", message)
        assert is_refused or re.match(rf"{option} \S* ?is (not a valid duration|more than 10 years)$", message), text
        assert len(result.exception.message) < 200


@pytest.mark.parametrize("text", ["-1", "4294967296", "1.5"])
@pytest.mark.parametrize("command", ["check", "run", "sweep", "submit", "evaluate"])
def test_seed_is_one_that_every_library_takes(command: str, text: str) -> None:
    result = CliRunner().invoke(
        app, [command, "--seed", text, "x", *(["--board", "redis://x"] * (command == "submit"))]
    )
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == f"--seed must be a whole number from 0 to 4294967295, got {text}"


def refused(*words: str) -> UsageError:
    """Return the error that ends a command."""
    result = CliRunner().invoke(app, list(words), prog_name="rlexp")
    assert isinstance(result.exception, UsageError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "f.yaml", "--gamma", "0.9"], "-o gamma=0.9 sets this key"),
        (["check", "f.yaml", "--lr=-1"], "-o lr=-1 sets this key"),
        (["run", "--gpu", "f.yaml"], "-o num_gpus=1 sets this key"),
        (["run", "--learning-rate", "3e-4", "f.yaml"], "-o lr=3e-4 sets this key"),
        (["run", "--timesteps", "1000", "f.yaml"], "-o stop.timesteps_total=1000 sets this key"),
        (["check", "f.yaml", "--seeds", "3"], "-o num_seeds=3 sets this key"),
        (["sweep", "f.yaml", "--lr", "1e-3,1e-4"], "--sweep lr=1e-3,1e-4 tries each"),
        (["run", "--config", "f.yaml"], "a file needs no option: rlexp run FILE"),
        (["run", "--sed", "3", "f.yaml"], "did you mean --seed?"),
        (["check", "f.yaml", "--stop", "reward=475"], "-o stop.episode_reward_mean=475 sets this key"),
        (["sweep", "--verbose", "f.yaml"], "did you mean --debug?"),
        (["resume", "--output-dir", "x", "f.yaml"], "rlexp resume -h lists the options"),
        (["evaluate", "--lr", "3", "run"], "rlexp evaluate -h lists the options"),
        (["run", "--frobnicate", "f.yaml"], "rlexp run -h lists the options"),
        (["run", "--agent", "PPO", "f.yaml"], "-o run=PPO sets this key"),
        (["run", "--agent", "PPO", "--env", "CartPole-v1"], "did you mean --algo?"),
        (["export", "run", "-o", "policy.onnx"], "did you mean --onnx?"),
        (["export", "run", "--format", "onnx"], "did you mean --onnx?"),
        (["compare", "run", "--out", "a.png"], "did you mean --png?"),
        (["compare", "run", "--x", "time"], "did you mean --by?"),
        (["logs", "run", "--metric", "x"], "did you mean --tag?"),
        (["evaluate", "run", "--seeds", "3"], "did you mean --episodes?"),
        (["sweep", "f.yaml", "--trials", "4"], "did you mean --num-samples?"),
        (["tensorboard", "--logdir", "x"], "a folder needs no option: rlexp tensorboard DIR"),
        (["run", "f.yaml", "--log-dir", "x"], "did you mean --out?"),
        (["run", "f.yaml", "--resume"], "rlexp resume DIR continues a run"),
        (["run", "f.yaml", "--epochs", "3"], "-o num_sgd_iter=3 sets this key"),
        (["run", "f.yaml", "--device", "cuda"], "-o num_gpus=1 sets this key"),
        (["run", "f.yaml", "--device", "cpu"], "-o num_gpus=0 sets this key"),
        (
            ["run", "f.yaml", "--target-kl", "0.1"],
            "no key ends the epochs of a train batch early; kl_target is the goal of the penalty kl_coeff",
        ),
    ],
)
def test_an_option_that_does_not_exist_gets_the_one_that_was_meant(words: list[str], hint: str) -> None:
    error = refused(*words)
    option = next(word for word in words if word.startswith("-")).partition("=")[0]
    assert error.message == f"rlexp {words[0]} has no option {option}"
    assert error.hint == hint


@pytest.mark.parametrize(
    "text", ["lr=loguniform:1e-4,1e-2", "lr=loguniform(1e-4, 1e-2)", "lr=tune.log_uniform[1e-4,1e-2]"]
)
def test_a_sampler_in_another_form_gets_the_right_one(text: str) -> None:
    error = refused("sweep", "f.yaml", "--sweep", text)
    assert error.hint == "write --sweep 'lr={loguniform: [1e-4, 1e-2]}'"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("lr=uniform", "write --sweep 'lr={uniform: [LOW, HIGH]}'"),
        ("lr=0.0001..1e-2", "write --sweep 'lr={loguniform: [0.0001, 1e-2]}'"),
    ],
)
def test_a_range_without_its_form_gets_it(text: str, hint: str) -> None:
    assert refused("sweep", "f.yaml", "--sweep", text).hint == hint


@pytest.mark.parametrize(
    ("word", "named"),
    [
        *(("plot", "compare"), ("algos", "explain run"), ("serve", "export"), ("play", "evaluate"), ("status", "ls")),
        *(("stop", "cancel"), ("list", "ls"), ("tb", "tensorboard"), ("tune", "sweep"), ("a.yaml", "run a.yaml")),
        *(("rollout", "evaluate RUN plays episodes"), ("version", "--version prints the version")),
        *(("evalute", "evaluate"), ("frobnicate", "-h"), ("CartPole-v1", "run --algo PPO --env CartPole-v1")),
    ],
)
def test_a_wrong_guess_names_the_command_that_does_it(word: str, named: str) -> None:
    error = refused(word)
    assert error.message == f"unknown command {word}"
    assert f"rlexp {named}" in str(error.hint)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        *(("list", "did you mean rlexp board tasks?"), ("servee", "did you mean rlexp board serve?")),
        ("frobnicate", "rlexp board -h lists the commands"),
    ],
)
def test_a_wrong_guess_below_board(word: str, hint: str) -> None:
    error = refused("board", word)
    assert (error.message, error.hint) == (f"unknown command board {word}", hint)


def test_commands_in_hints_exist() -> None:
    hints = " ".join(OTHER_NAMES.values())
    assert set(re.findall(r"rlexp ([a-z]+)", hints)) <= set(COMMANDS)
    assert not set(OTHER_NAMES) & set(COMMANDS)


FILE = """\
cartpole:
  run: DQN
  env: CartPole-v1
  config: {num_workers: 0, seed: 1}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cartpole.yaml"
    path.write_text(FILE)
    return path


def seeds(*words: object, cwd: Path | None = None) -> list[int]:
    done = rlexp("check", "--json", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [trial["seed"] for trial in json.loads(done.stdout)["trials"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["config.seed=2"], [2]),
        (["seed=2"], [2]),
        (["seed=2", "-o", "seed=3"], [3]),
        (["-o", "seed=3", "seed=2"], [2]),
        (["seed=2", "-o", "seed=3", "config.seed=4", "-o", "config.seed=5"], [5]),
        (["seed={grid_search: [2, 3]}"], [2, 3]),
        (["--allow-unknown", "seed=2", "env_config.a.b=1", "stop.info/num_steps_trained=5"], [2]),
        (["-oseed=2"], [2]),
    ],
)
def test_words_override_as_the_option_does(path: Path, words: list[str], expected: list[int]) -> None:
    assert seeds(path, *words) == expected
    assert seeds(*words, path) == expected, "before the file as well"


@pytest.mark.parametrize(
    ("words", "number"), [([], 1), (["--override", "num_seeds=3"], 3), (["num_seeds=2", "num_samples=4"], 4)]
)
def test_num_seeds_is_the_number_of_trials(path: Path, words: list[str], number: int) -> None:
    found = seeds(path, *words)
    assert len(set(found)) == number


def test_option_for_seeds(path: Path) -> None:
    path.write_text(FILE.replace("env:", "num_samples: 2\n  env:"))
    done = rlexp("run", path, "--seeds", "3", "--dry-run", "--json")
    assert [trial["sample"] for trial in json.loads(done.stdout)["trials"]] == [0, 1, 2]
    done = rlexp("sweep", path, "--sweep", "lr=1e-3,1e-4", "--seeds", "3", "--dry-run", "--json")
    assert len(json.loads(done.stdout)["trials"]) == 6


def test_an_override_may_be_longer_than_any_name_of_a_file(path: Path) -> None:
    long = "{grid_search: [" + ", ".join(map(str, range(100))) + "]}"
    assert len(long) > 255
    assert seeds(path, f"seed={long}") == list(range(100))


def test_an_existing_file_is_no_override(path: Path) -> None:
    folder = path.parent
    (folder / "seed=2").write_text(FILE.replace("seed: 1", "seed: 3"))
    assert seeds("seed=2", cwd=folder) == [3]
    assert seeds("seed=2", "config.seed=4", cwd=folder) == [4]


def test_after_two_dashes_words_are_files(path: Path) -> None:
    done = rlexp("check", path, "--", "lr=1e-4")
    assert done.returncode == 2
    assert "lr=1e-4  path does not exist" in done.stderr


def test_values_of_options_are_no_overrides(path: Path) -> None:
    done = rlexp("run", path, "--dry-run", "--name", "seed=2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"][0]["seed"] == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("config.lrr=1e-4", "config.lrr=1e-4  unknown key config.lrr"),
        ("config.lr=fast", "config.lr=fast  config.lr must be a number > 0, got the string 'fast'"),
    ],
)
def test_errors_name_the_word(path: Path, word: str, message: str) -> None:
    done = rlexp("check", path, word)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.replace("error: ", "error: -o ", 1) == rlexp("check", path, "-o", word).stderr
    assert json.loads(rlexp("check", "--json", path, word).stdout)["problems"][0]["where"] == word


@pytest.mark.parametrize(
    "command", [["run", "--dry-run"], ["sweep", "--dry-run", "--sweep", "gamma=0.9,0.99"], ["check"]]
)
def test_every_command_with_a_file_takes_words(path: Path, command: list[str]) -> None:
    done = rlexp(*command, path, "seed=2", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert command[0] == "sweep" or [trial["seed"] for trial in printed["trials"]] == [2]
    assert rlexp(*command, path, "seed=two").returncode == 2


def test_a_dry_run_refuses_what_the_command_refuses(path: Path) -> None:
    path.write_text(FILE.replace("seed: 1", "lr: {uniform: [1e-4, 1e-3]}") + "  search: {num_samples: 2}\n")
    done = rlexp("run", path, "--dry-run")
    assert (done.returncode, "has a search section" in done.stderr) == (2, True)
    assert rlexp("sweep", path, "--dry-run").returncode == 0


def test_submit_takes_words(path: Path) -> None:
    done = rlexp("submit", path, "lrr=2", "--board", "redis://127.0.0.1:9", RLEXP_BOARD=None)
    assert done.returncode == 2
    assert "lrr=2  unknown key" in done.stderr


def test_resume_takes_words(tmp_path: Path) -> None:
    trials = [MadeTrial([1.0, 2.0], seed, {"lr": lr}) for seed, lr in ((1, 0.1), (2, 0.2))]
    run = make_run(tmp_path / "results" / "grid", trials)
    done = rlexp("resume", run, "lr=0.3")
    assert done.returncode == 3
    assert "lr=0.3: lr cannot change when" in done.stderr
    assert "-o lr=0.3" not in done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "results" / "grid", [MadeTrial([1.0, 2.0], 1, {"lr": 0.1})])
    make_run(tmp_path / "elsewhere" / "other", [MadeTrial([1.0, 2.0], 1, {"lr": 0.1})])
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "pong.yaml").write_text("pong: {env: x}\n")
    (tmp_path / "ppo.yaml").write_text("a:\n  run: ppo\n  env: CartPole-v1\n")
    (tmp_path / "sac.yaml").write_text("a:\n  run: QMIX\n  env: Pendulum-v1\n")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def in_bash(folder: Path, *words: str, **environ: str) -> list[str]:
    """Return what bash is offered for the last of ``words``."""
    asked = {
        "COMP_WORDS": "\n".join(("rlexp", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_bash", **asked, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["res"], ["resume"]),
        (["run", "p"], ["ppo.yaml"]),
        (["run", "tu"], ["tuned/pong.yaml"]),
        (["check", "no"], []),
        (["run", "ppo.yaml", "-o", "config.clip_p"], ["config.clip_param=", "config.clip_param=0.3"]),
        (["run", "ppo.yaml", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["sweep", "ppo.yaml", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["run", "ppo.yaml", "-o", "config.double"], []),
        (["run", "sac.yaml", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["run", "ppo.yaml", "-o", "batch_mode", "=", "c"], ["complete_episodes"]),
        (["sweep", "ppo.yaml", "batch_mode", "="], ["truncate_episodes", "complete_episodes"]),
        (["resume", "r"], ["results/grid"]),
        (["resume", "results/grid", "num_works"], []),
        (["evaluate", "results/grid/"], ["results/grid/00000/"]),
        (["compare", "results/grid", "res"], ["results/grid"]),
        (["export", "results"], ["results/grid"]),
        (["explain", "logu"], ["loguniform"]),
        (["run", "--algo", "p"], ["ppo", "pqn", "pg"]),
        (["run", "--algo", "PPO", "--env", "CartPole-v1", "-o", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["train", "--env", "LunarL"], ["LunarLander-v3", "LunarLanderContinuous-v3"]),
        (["nonsense", "a"], []),
    ],
)
def test_bash_is_offered(folder: Path, words: list[str], offered: list[str]) -> None:
    found = in_bash(folder, *words)
    if words[-1] == "results/grid/":
        assert [Path(each).parent for each in found] == [Path("results/grid")]
    else:
        assert found == offered


def test_runs_are_looked_for_where_they_are_kept(folder: Path) -> None:
    assert in_bash(folder, "resume", "", RLEXP_OUT="elsewhere") == ["elsewhere/other"]


def test_zsh_and_fish_get_meanings(folder: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "rlexp run ppo.yaml -o config.use_"}
    fish = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    offered = [line.split("\t") for line in fish.stdout.splitlines()]
    assert [name for name, _ in offered] == ["config.use_gae=", "config.use_critic="]
    assert all(meaning for _, meaning in offered)
    zsh = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_zsh", **words)
    assert '"config.use_gae=":"' in zsh.stdout


def test_names_of_commands_are_completed_with_their_lines_and_import_none(folder: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "rlexp s", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    fish = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_fish", **words)
    starting = [name for name in COMMANDS if name.startswith("s")]
    assert [line.partition("\t")[0] for line in fish.stdout.splitlines() if "\t" in line] == starting
    assert f"schema\t{summary_of('schema')}" in fish.stdout
    loaded = loaded_by(COMP_WORDS="rlexp res", COMP_CWORD="1", _RLEXP_COMPLETE="complete_bash")
    found = {name for name in loaded if name.startswith("rlexp.commands.")}
    assert found == {"rlexp.commands.command"}


@pytest.mark.parametrize(
    ("words", "unused"), [("rlexp resume r", {"rlexp.cluster"}), ("rlexp run --al", {"yaml", "rlexp.config"})]
)
def test_completion_loads_only_what_it_shows(folder: Path, words: str, unused: set[str]) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": "2", "_RLEXP_COMPLETE": "complete_bash"}
    assert not loaded_by(cwd=folder, **asked) & {"torch", "ray", "gymnasium", *unused}
