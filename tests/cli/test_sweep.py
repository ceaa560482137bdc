"""``rlexp sweep`` before anything runs: what it would do, and what is wrong."""

import json
from pathlib import Path

import pytest

from tests.cli.forked_commands import rlexp, rlexp_in_new_process

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
        "cartpole: 6 configurations by random with 2 seeds each, 12 trials; asha after 62.5 timesteps_total"
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
