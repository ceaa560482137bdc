"""``rlexp run``, ``sweep`` and ``train`` with an agent and an env in place of a file, up to where a training begins.

What is typed wrongly, with the error and the hint that it gets; what ``rlexp sweep`` would do with a file, and what is
wrong with it.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from rlexp.config.load import load_plan
from tests.cli.forked_commands import rlexp, rlexp_in_new_process

OWN_ENV = """\
import gymnasium

class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 1.0, True, False, {}
"""


def kept(*words: str, cwd: Path | None = None) -> str:
    """Return the file that a run would keep."""
    done = rlexp(*words, "--dry-run", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("experiment.yaml:\n\n")[2]


def test_settings_are_named_and_shown() -> None:
    done = rlexp("run", "--algo", "ppo", "--env", "CartPole-v1", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "settings: the example cartpole-ppo\n")
    assert done.stdout.splitlines()[1].split()[:3] == ["00000-PPO-CartPole-v1", "PPO", "CartPole-v1"]
    assert "\ncartpole-ppo:\n  run: PPO\n  env: CartPole-v1\n" in done.stdout


def test_options_are_values_of_keys(tmp_path: Path) -> None:
    options = ["--stop", "reward=250", "--stop", "steps=1e5", "--seeds", "3", "--lr", "1e-3", "-o", "gamma=0.9"]
    file = tmp_path / "experiment.yaml"
    file.write_text(kept("run", "--algo", "PPO", "--env", "LunarLander-v3", *options))
    assert "  num_seeds: 3\n" in file.read_text()
    plan = load_plan([file])
    experiment = plan.trials[0].experiment
    assert len(plan.trials) == 3
    assert experiment.stop == {"episode_reward_mean": 250, "timesteps_total": 100000}
    assert experiment.config.model_dump()["lr"] == 1e-3
    assert experiment.config.gamma == 0.9


@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_directory_that_cannot_be_made_is_named_with_the_errors_of_the_file(
    tmp_path: Path, command: str, dry_run: list[str]
) -> None:
    (tmp_path / "taken").touch()
    file = tmp_path / "a.yaml"
    for config, errors in {"{lr: x, gama: 1}": 3, "{lr: {grid_search: [1e-3, 1e-4]}}": 1}.items():
        file.write_text(f"a:\n  run: DQN\n  env: CartPole-v1\n  config: {config}\n")
        done = rlexp(command, file, "--out", "taken/runs", *dry_run, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("error: ")) == (2, "", errors)
        assert "error: cannot create " in done.stderr
        assert done.stderr.endswith("hint:  give a directory that can be written with --out\n")


def test_name_of_a_run_that_exists_is_refused_before_its_settings_are_shown(tmp_path: Path) -> None:
    (tmp_path / "results" / "mine").mkdir(parents=True)
    words = ["run", "--algo", "PPO", "--env", "CartPole-v1", "--name", "mine", "--dry-run"]
    done = rlexp(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "mine" in done.stderr
    assert rlexp(*words, "--overwrite", cwd=tmp_path).returncode == 0


def test_options_change_files_too(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 10}\n")
    done = rlexp("run", file, "--stop", "reward=7", "--seeds", "2", "--dry-run")
    assert "episode_reward_mean 7" in done.stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith("0000")]) == 2


def test_train_is_another_spelling() -> None:
    words = ["--env", "CartPole-v1", "--lr", "1e-3", "-o", "num_samples=2"]
    own = kept("run", "--algo", "PPO", *words)
    assert kept("train", "--run", "PPO", "--experiment-name", "cartpole-ppo", *words) == own
    assert "\ndefault:\n" in kept("train", "--run", "PPO", *words)


def test_json_of_train_is_laid_over_the_settings() -> None:
    words = ["--config", '{"gamma": 0.5}', "--stop", '{"timesteps_total": 10}', "--checkpoint-freq", "0"]
    text = kept("train", "--run", "PPO", "--env", "CartPole-v1", *words)
    assert "  stop: {timesteps_total: 10}\n  checkpoint_freq: 0\n" in text
    assert "    gamma: 0.5\n" in text


def test_an_env_of_ones_own_is_asked_for_its_kind(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text(OWN_ENV)
    text = kept("run", "--algo", "DQN", "--env", "maze:Maze", cwd=tmp_path)
    assert text.startswith("# Settings: DQN for numbered states.")
    assert "\nmaze-dqn:\n" in text


def test_a_sweep_without_a_file() -> None:
    text = kept("sweep", "--algo", "PPO", "--env", "CartPole-v1", "--sweep", "lr=1e-3,1e-4", "--num-samples", "2")
    assert "    lr: {grid_search: [0.001, 0.0001]}\n" in text
    assert "  search: {num_samples: 2}\n" in text


WRONG = """\
$ rlexp run CartPole-v1
error: CartPole-v1 is an environment, not an experiment file
hint:  rlexp run --algo PPO --env CartPole-v1
$ rlexp run dqn
error: DQN is an agent, not an experiment file
hint:  rlexp run --algo DQN --env CartPole-v1
$ rlexp run Pendulum-v0 pqn
error: Pendulum-v0 is an environment, not an experiment file
hint:  rlexp run --algo PQN --env Pendulum-v0
$ rlexp run cartpole-ppo
error: cartpole-ppo is an example, not a file here
hint:  rlexp examples cartpole-ppo copies it to this folder
$ rlexp run ppo --env Taxi-v4
error: PPO is an agent, not an experiment file
hint:  rlexp run --algo PPO --env Taxi-v4
$ rlexp run experiment
error: experiment  path does not exist
hint:  rlexp init writes a file to begin with, rlexp examples lists others
$ rlexp run
error: run needs a file, or --algo and --env
hint:  rlexp run FILE, or rlexp run --algo PPO --env CartPole-v1
$ rlexp run --env Taxi-v4
error: run needs a file, or --algo and --env
hint:  rlexp run FILE, or rlexp run --algo PPO --env Taxi-v4
$ rlexp run --algo POP --env CartPole-v1
error: --algo POP  unknown agent POP
hint:  did you mean PPO?
$ rlexp run --algo PPO --env CartPole-v1 a.yaml
error: --algo cannot be combined with a file
hint:  rlexp run FILE -o run=APEX overrides a value in the file
$ rlexp run --algo DQN --env BipedalWalker-v3
error: --env BipedalWalker-v3  env BipedalWalker-v3 has continuous actions; DQN, APEX, R2D2 and PQN need discrete ones
hint:  PPO takes them, SAC only floats; discretize_actions: 5 chooses among 5 values per dimension
$ rlexp run --algo PPO --env CartPole-v1 -o train_batch_size=100
error: the example cartpole-ppo  config.sgd_minibatch_size is 256, more than train_batch_size, which is 100
hint:  lower sgd_minibatch_size or raise train_batch_size
$ rlexp run --algo PPO --env CartPole-v1 --stop reward
error: --stop reward has no value
hint:  for example --stop reward=475, or --stop steps=1e6
$ rlexp run --algo PPO --env CartPole-v1 --stop =5
error: --stop =5 names no metric
hint:  for example --stop reward=475, or --stop steps=1e6
$ rlexp run --algo QMIX --env Pendulum-v1
error: --algo QMIX  QMIX is an algorithm of RLlib that rlexp does not have
hint:  use DQN, APEX, PPO, PQN, A2C, A3C, PG, SIMPLEQ, DDPPO, DDPG, TD3, APEX_DDPG, SAC, IMPALA, APPO, ES, ARS, R2D2 \
or APEX_R2D2
$ rlexp run --algo PPO --env CartPole-v1 -o env=Pendulum-v1
error: -o env=Pendulum-v1 cannot be combined with --env
hint:  name it with --env; a file can have a grid of them
$ rlexp run --algo PPO --env CartPole-v1 --lr high
error: --lr high  config.lr must be a number > 0, got the string 'high'
$ rlexp evaluate
error: rlexp evaluate needs PATH
hint:  PATH: A run, a trial or a checkpoint.
$ rlexp cancel
error: rlexp cancel needs URL ID
hint:  URL ID: The board, and the task.
$ rlexp export run policy.onnx
error: rlexp export cannot take policy.onnx
hint:  --onnx policy.onnx
$ rlexp evaluate run more
error: rlexp evaluate cannot take more
hint:  rlexp evaluate -h shows what it takes
$ rlexp sweep f.yaml --sweep lr=1e-3 1e-4
error: rlexp sweep cannot take 1e-4
hint:  values of --sweep are one word: --sweep lr=1e-3,1e-4
$ rlexp run --algo
error: rlexp run: --algo needs a value
hint:  --algo AGENT: Train this agent without a file; needs --env.
$ rlexp compare run --by lr
error: --by must be one of steps, time, got lr
hint:  --by: Align runs by env steps or by wall time.
$ rlexp rollout x
error: unknown command rollout
hint:  rlexp evaluate RUN plays episodes
$ rlexp version
error: unknown command version
hint:  rlexp --version prints the version
$ rlexp evaluat x
error: unknown command evaluat
hint:  did you mean rlexp evaluate?
$ rlexp run maze.py
error: maze.py is a Python file, not an experiment file
hint:  rlexp run --algo PPO --env maze:Maze
$ rlexp check maze.py
error: maze.py is a Python file, not an experiment file
hint:  rlexp init --algo PPO --env maze:Maze
$ rlexp convert maze.py
error: maze.py is a Python file, not an experiment file
hint:  rlexp init --algo PPO --env maze:Maze
$ rlexp run broken.py
error: broken.py is a Python file, not an experiment file
hint:  rlexp run --algo PPO --env broken:Class
$ rlexp run maze:Maze
error: maze:Maze is an environment, not an experiment file
hint:  rlexp run --algo PPO --env maze:Maze
$ rlexp check dqn
error: DQN is an agent, not an experiment file
hint:  rlexp init --algo DQN --env CartPole-v1
$ rlexp compare maze.py
error: maze.py is a file
hint:  rlexp ls DIR lists runs
$ rlexp run --algo DQN --env maze.py
error: --env maze.py  env maze.py is a file
hint:  name a class in it: maze:CLASS
$ rlexp run --algo DQN --env maze
error: --env maze  env maze is not a Gymnasium environment
hint:  did you mean maze:Maze?
$ rlexp run --algo DQN --env Maze
error: --env Maze  env Maze is not a Gymnasium environment
hint:  did you mean maze:Maze?
$ rlexp run --algo DQN --env maze:Maze --env-config size=3
error: rlexp run has no option --env-config
hint:  -o env_config.size=3 sets this key
$ rlexp run --algo DQN --env maze:Maze --batch-size 64
error: rlexp run has no option --batch-size
hint:  -o train_batch_size=64 sets this key
$ rlexp train --run DQN --env maze:Maze --gamma 0.9
error: rlexp train has no option --gamma
hint:  -o gamma=0.9 sets this key
"""
"""What somebody types, in a folder with ``maze.py`` and ``broken.py``, and what is wrong with it."""


@pytest.mark.parametrize(("words", "said"), re.findall(r"^\$ rlexp (.*)\n((?:[^$].*\n)+)", WRONG, re.MULTILINE))
def test_what_is_wrong_is_named_with_what_works(words: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text(OWN_ENV)
    (tmp_path / "broken.py").write_text("class Half(gymnasium.Env):\n  def\n")
    command, *others = shlex.split(words)
    done = rlexp(command, *(["--dry-run"] if command == "run" else []), *others, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, said)


def test_an_unknown_env_is_compared_with_known_ones() -> None:
    done = rlexp("run", "--algo", "PPO", "--env", "Cartpole-v1")
    error, hint = done.stderr.splitlines()
    assert error == "error: --env Cartpole-v1  env Cartpole-v1 is not a Gymnasium environment"
    assert hint.startswith("hint:  did you mean CartPole-v1?")


@pytest.mark.parametrize(("text", "seconds"), [("time=30m", 1800), ("time_total_s=1.5h", 5400), ("time=600", 600)])
def test_stop_takes_durations(text: str, seconds: float) -> None:
    done = rlexp("run", "--algo", "PPO", "--env", "CartPole-v1", "--stop", text, "--dry-run", "--json")
    assert json.loads(done.stdout)["trials"][0]["stop"]["time_total_s"] == seconds


SWEEP = """\
cartpole:
  run: dqn
  env: CartPole-v1
  stop: {timesteps_total: 1000}
  search: {num_samples: 3, scheduler: asha}
  config:
    seed: 1
    lr: {loguniform: [1e-4, 1e-2]}
    optimizer: {}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def test_dry_run_prints_space_searcher_and_scheduler(path: Path) -> None:
    done = rlexp("sweep", str(path), "--dry-run", "--num-seeds", "2", "--sweep", "n_step=1,3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "cartpole: 6 configurations by random with 2 seeds each, 12 trials; asha after 63 timesteps_total"
    )
    assert lines[2].split() == ["lr", "loguniform", "[0.0001,", "0.01]"]
    assert lines[3].split() == ["n_step", "grid_search", "[1,", "3]"]
    assert sum(line.startswith("000") for line in lines) == 12


@pytest.mark.parametrize(
    ("searcher", "seed", "said"),
    [
        ("random", "null", "example values: config.seed is not set, so each command draws others"),
        ("random", "1", ""),
        ("optuna", "1", "optuna chooses the values while the sweep runs"),
    ],
)
def test_check_prints_where_values_come_from(path: Path, searcher: str, seed: str, said: str) -> None:
    done = rlexp("check", str(path), "-o", f"search.searcher={searcher}", "-o", f"config.seed={seed}")
    assert done.stdout.splitlines()[3] == said


def test_check_prints_the_search_section_as_json(path: Path) -> None:
    (sweep,) = json.loads(rlexp("check", str(path), "--json").stdout)["sweeps"]
    assert sweep["space"] == {"lr": {"loguniform": [0.0001, 0.01]}}
    assert (sweep["searcher"], sweep["configurations"], sweep["seed"]) == ("random", 3, 1)


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_check_counts_distinct_points(path: Path, searcher: str) -> None:
    assert "ranked by episode_reward_mean (max); the space is continuous" in rlexp("check", str(path)).stdout
    small = [
        f"search={{searcher: {searcher}, num_samples: 20}}",
        "lr={choice: [1e-3, 1e-4]}",
        "n_step={randint: [1, 4]}",
    ]
    overrides = [word for override in small for word in ("-o", override)]
    done = rlexp("check", str(path), *overrides)
    assert done.stdout.startswith(f"cartpole: 6 configurations by {searcher}, 6 trials")
    assert "; 6 distinct points" in done.stdout
    assert "search.num_samples is 20, but cartpole has only 6 distinct points: each is tried once" in done.stderr
    (sweep,) = json.loads(rlexp("check", str(path), "--json", *overrides).stdout)["sweeps"]
    assert (sweep["configurations"], sweep["distinct_points"]) == (6, 6)


def test_the_same_seed_draws_the_same_points(path: Path) -> None:
    first, other, again = (
        [trial["varied"] for trial in json.loads(done.stdout)["trials"]]
        for done in (
            rlexp("check", path, "--json"),
            rlexp("check", path, "--json", "--seed", "2"),
            rlexp_in_new_process("check", path, "--json", PYTHONHASHSEED="1"),
        )
    )
    assert first == again != other


def test_rlexp_run_refuses_a_sweep_and_names_the_command(path: Path, tmp_path: Path) -> None:
    done = rlexp("run", str(path), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert f"error: {path}:5:3  cartpole has a search section" in done.stderr
    assert "rlexp sweep" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--num-samples", "0"], "--num-samples must be a whole number from 1 to"),
        (["--metric", "reward"], "--metric reward  search.metric is not a metric of the results"),
        (["--searcher", "grid", "--num-samples", "1"], "lr: loguniform cannot be used with search.searcher: grid"),
        (["--sweep", "lr=-1,1"], "--sweep lr=-1,1  config.lr must be a number > 0, got -1"),
        (["--sweep", "lr"], "--sweep lr names no values"),
        (["--sweep", "lr="], "--sweep lr=  config.lr: grid_search needs a list of values"),
        (["--sweep", "n_setp=1,2"], "unknown key config.n_setp (agent DQN)"),
        (["-o", "stop={}"], "search.scheduler is asha, but neither stop.timesteps_total nor"),
        (
            ["--scheduler", "hyperband", "-o", "stop={}"],
            "search.scheduler is hyperband, but stop.timesteps_total is not given",
        ),
        (
            ["-o", "search.asha.grace_period=2000", "-o", "stop.timesteps_total=1500"],
            "search.asha.grace_period is 2000, but trials end at stop.timesteps_total: 1500, before any are compared",
        ),
        (["-o", "search.asha.reduction_factor=1.0001"], "search.asha.reduction_factor must be a number >= 1.5"),
        (["-o", "lr=1e-3"], "cartpole has nothing to search"),
        (
            ["--searcher", "optuna", "--sweep", "n_step=1,2"],
            "n_step: grid_search cannot be used with search.searcher: optuna",
        ),
        (["--searcher", "optuna", "--scheduler", "pbt"], "searcher is optuna, but scheduler: pbt chooses keys itself"),
        (
            ["--scheduler", "pbt", "--sweep", "hiddens={choice: [[8], [16]]}"],
            "hiddens cannot be searched with scheduler: pbt",
        ),
        (["--searcher", "nonsense"], "nonsense"),
        (["-o", "search.num_sample=3"], "unknown key search.num_sample"),
    ],
)
def test_refused_sweep_creates_nothing(arguments: list[str], said: str, path: Path, tmp_path: Path) -> None:
    done = rlexp("sweep", str(path), "--out", str(tmp_path / "out"), *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_sweep_refuses_file_with_several_experiments(path: Path) -> None:
    path.write_text(SWEEP + SWEEP.replace("cartpole", "other"))
    done = rlexp("sweep", str(path))
    assert done.returncode == 2
    assert "a sweep must have one experiment, but there are 2: cartpole, other" in done.stderr


def test_sweep_reads_files_of_other_tools(path: Path) -> None:
    path.write_text(
        "old:\n  run: DQN\n  env: CartPole-v1\n  stop: {timesteps_total: 1000}\n  num_samples: 8\n"
        "  scheduler: AsyncHyperBand\n  metric: episode_reward_mean\n  mode: max\n"
        '  config: {lr: {sample_from: "lambda spec: random.uniform(1e-4, 1e-2)"}}\n'
    )
    done = rlexp("check", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("old: 8 configurations by random, 8 trials; asha after")
    assert "scheduler is search.scheduler now" in done.stderr
    assert "search.scheduler: AsyncHyperBand is asha now" in done.stderr
