"""Trains the experiments of docs/results.md over several seeds, draws their curves and prints their tables.

Each picture has one env: its lines are experiment files, each trained for a number of env steps whatever goal it has,
and Stable-Baselines3 where `benchmarks.sb3` has the task. A run is OUT/NAME-SEED; what has reached its end
is not trained again, what was interrupted goes on, so that the work can be done in pieces.

    python -m benchmarks.results [PICTURE...] [--seeds 0 1 2 3 4] [--out results] [--train]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.comparison import conditions
from benchmarks.learning_table import TITLES, line_of_group, markdown
from benchmarks.processes import RLEXP
from rlexp.compare.group import SettingsReader, groups_of
from rlexp.runs.record import Status, read_run_record

EXPERIMENTS: Final = Path(__file__).parents[1] / "experiments"
IMAGES: Final = EXPERIMENTS.parent / "docs/images"
EPISODES: Final = 20
"""How many greedy ones are played with the final weights of a run."""


@dataclass(frozen=True)
class Curve:
    """A line of a picture: one experiment, trained with every seed."""

    label: str
    name: str
    """Of its runs, followed by the seed; that of the file unless ``overrides`` make another experiment of it."""
    steps: int | None
    """How many env steps each run has; None: as its file says."""
    overrides: tuple[str, ...] = ()
    file: str = ""

    def train(self, out: Path, seed: int) -> Path:
        """Train, unless it was; return the directory."""
        run = out / f"{self.name}-{seed}"
        if not run.exists():
            stop = () if self.steps is None else (f"stop={{timesteps_total: {self.steps}}}",)
            overrides = [word for override in (*stop, *self.overrides) for word in ("-o", override)]
            file = EXPERIMENTS / f"{self.file or self.name}.yaml"
            _rlexp("run", file, *overrides, "--seed", seed, "--name", run.name, "--out", out)
        elif read_run_record(run).status is not Status.TERMINATED:
            _rlexp("resume", run)
        return run


@dataclass(frozen=True)
class Peer:
    """A line of a picture: Stable-Baselines3's agent on a task of ``benchmarks.sb3``."""

    task: str
    label: str = "SB3"

    def train(self, out: Path, seed: int) -> Path:
        """Train, unless it was; return the directory."""
        run = out / "sb3" / f"{self.task}-{seed}"
        if not run.exists():
            program = [
                sys.executable,
                "-m",
                "benchmarks.sb3",
                self.task,
                "--seeds",
                str(seed),
                "--out",
                str(run.parent),
            ]
            subprocess.run(program, check=True)
        return run


_PARTS: Final = {
    "n_step": ("n_step=1",),
    "prioritized_replay": ("prioritized_replay=false",),
    "dueling": ("dueling=false",),
    "double_q": ("double_q=false",),
    "num_atoms": ("num_atoms=1",),
    "noisy": ("noisy=false", "epsilon_timesteps=20000", "exploration_final_eps=0.01"),
}
"""The parts of Rainbow, and what turns each off."""
_NO_PARTS: Final = tuple(override for overrides in _PARTS.values() for override in overrides)
_ONE_LAYER: Final = ("lr=1e-3", "model.fcnet_hiddens=[64]")
_UNMASKED: Final = ("action_mask=null",)


def _minatar(game: str) -> tuple[Curve, ...]:
    """Return DQN, which is Rainbow without its parts, Rainbow and PQN on a game of MinAtar."""
    env, name = f"env=MinAtar/{game}-v1", f"minatar-{game.lower()}"
    return (
        Curve("DQN", f"{name}-dqn", 200_000, (env, *_NO_PARTS), file="minatar-rainbow"),
        Curve("Rainbow", f"{name}-rainbow", 200_000, (env,), file="minatar-rainbow"),
        Curve("PQN", f"{name}-pqn", 200_000, (env,), file="minatar-pqn"),
    )


PICTURES: Final[dict[str, tuple[Curve | Peer, ...]]] = {
    "cartpole": (Curve("DQN", "cartpole-dqn-50k", 50_000), Curve("APEX", "cartpole-apex", 400_000), Peer("cartpole")),
    "cartpole-values": (
        Curve("DQN", "cartpole-dqn", 200_000),
        Curve("SimpleQ", "cartpole-simpleq", 50_000),
        Curve("PQN", "cartpole-pqn", 150_000),
        Curve("SAC", "cartpole-sac", 100_000),
    ),
    "cartpole-policies": (
        Curve("PPO", "cartpole-ppo", 100_000),
        Curve("DDPPO", "cartpole-ddppo", 150_000),
        Curve("A2C", "cartpole-a2c", 300_000),
        Curve("A3C", "cartpole-a3c", 300_000),
        Curve("PG", "cartpole-pg", 100_000),
    ),
    "cartpole-others": (
        Curve("IMPALA", "cartpole-impala", 500_000),
        Curve("APPO", "cartpole-appo", 500_000),
        Curve("ES", "cartpole-es", 500_000),
        Curve("ARS", "cartpole-ars", 150_000),
    ),
    "acrobot": (
        Curve("DQN", "acrobot-dqn", 100_000),
        Curve("APEX", "acrobot-apex", 300_000),
        Curve("PPO", "acrobot-ppo", 300_000),
        Peer("acrobot"),
    ),
    "mountaincar": (
        Curve("DQN", "mountaincar-dqn", 120_000),
        Curve("APEX", "mountaincar-apex", 400_000),
        Curve("PPO", "mountaincar-ppo", 500_000),
        Peer("mountaincar"),
    ),
    "lunarlander": (
        Curve("DQN", "lunarlander-dqn", 300_000),
        Curve("APEX", "lunarlander-apex", 500_000),
        Peer("lunarlander"),
    ),
    "lunarlander-continuous": (Curve("PPO", "lunarlander-ppo", 500_000), Curve("SAC", "lunarlander-sac", 300_000)),
    "pendulum": (
        Curve("DQN", "pendulum-dqn", 42_000),
        Curve("APEX", "pendulum-apex", 150_000),
        Peer("pendulum"),
    ),
    "pendulum-continuous": (
        Curve("PPO", "pendulum-ppo", 120_000),
        Curve("DDPG", "pendulum-ddpg", 20_000),
        Curve("TD3", "pendulum-td3", 20_000),
        Curve("SAC", "pendulum-sac", 20_000),
        Curve("APPO", "pendulum-appo", 120_000),
    ),
    "mountaincar-continuous": (
        Curve("PPO", "mountaincarcontinuous-ppo", 300_000),
        Curve("TD3", "mountaincarcontinuous-td3", 100_000),
    ),
    "stateless-cartpole": (
        Curve("PPO", "statelesscartpole-ppo", 200_000),
        Curve("R2D2", "statelesscartpole-r2d2", 60_000),
    ),
    "four-cartpoles": (Curve("PPO", "multi-cartpole-ppo", 12_000),),
    "frozenlake": (Curve("APPO", "frozenlake-appo", 500_000),),
    "multiwalker": (Curve("PPO", "multiwalker-ppo", 200_000),),
    "minigrid": (Curve("PPO", "minigrid-ppo", 300_000),),
    "taxi": (
        Curve("DQN, no layer", "taxi-dqn", 150_000),
        Curve("DQN, a layer of 64", "taxi-hidden-dqn", 150_000, _ONE_LAYER, file="taxi-dqn"),
        Curve("DQN, no layer, no mask", "taxi-unmasked-dqn", 150_000, _UNMASKED, file="taxi-dqn"),
        Curve(
            "DQN, a layer of 64, no mask", "taxi-unmasked-hidden", 150_000, (*_ONE_LAYER, *_UNMASKED), file="taxi-dqn"
        ),
        Curve("APEX, no layer", "taxi-apex", 300_000),
        Peer("taxi", "SB3, no layer"),
        Peer("taxi-hidden", "SB3, a layer of 64"),
    ),
    "minatar-parts": (
        Curve("Rainbow", "rainbow", 100_000, file="minatar-rainbow"),
        Curve("DQN", "dqn", 100_000, _NO_PARTS, file="minatar-rainbow"),
        *(Curve(f"no {part}", f"no-{part}", 100_000, off, file="minatar-rainbow") for part, off in _PARTS.items()),
    ),
    "minatar-breakout": (*_minatar("Breakout"), Curve("R2D2", "minatar-r2d2", 200_000)),
    "minatar-space-invaders": _minatar("SpaceInvaders"),
    "minatar-asterix": _minatar("Asterix"),
    "minatar-others": (
        Curve("PPO", "minatar-ppo", 1_000_000),
        Curve("Double DQN", "minatar-dqn", 200_000, ("env=MinAtar/Breakout-v1",)),
    ),
    "halfcheetah": (Curve("PPO", "halfcheetah-ppo", 1_000_000),),
    "hopper": (Curve("PPO", "hopper-ppo", 1_000_000),),
    "pong": (Curve("PPO", "pong-ppo-small", None),),
}
"""The lines of each picture by its name: images/results-NAME.png."""
WITHOUT: Final = {
    "ant-ppo": "takes hours",
    "atari-apex": "takes a GPU and hours",
    "atari-dqn": "takes a GPU and hours",
    "atari-rainbow": "takes a GPU and hours",
    "bipedalwalker-ppo": "takes hours",
    "breakout-apex": "takes a GPU",
    "cartpole-board": "cartpole-apex with a board between actors and learner",
    "cartpole-cluster": "cartpole-apex on several machines",
    "cartpole-ppo-sweep": "a sweep",
    "cartpole-rainbow": "two experiments in one file; minatar-rainbow has all parts, too",
    "cartpole-seeds": "a grid of its own",
    "cartpole-sweep": "a sweep",
    "own-env": "begins a page on envs; it ends within seconds",
    "pendulum-pbt": "a sweep",
    "pong-apex": "takes a GPU",
    "pong-apex-small": "takes hours; a table of docs/results.md has its seeds",
    "pong-appo-small": "takes hours",
    "pong-ppo": "takes hours; pong-ppo-small learns the same game",
    "walker2d-ppo": "takes hours",
}
"""Experiment files that are in no picture, and why."""


def train(curves: Sequence[Curve | Peer], seeds: Sequence[int], out: Path) -> dict[str, list[Path]]:
    """Train what was not, seed by seed, so that an early end leaves as many of each; return the runs by label."""
    runs: dict[str, list[Path]] = {curve.label: [] for curve in curves}
    for seed in seeds:
        for curve in curves:
            runs[curve.label].append(curve.train(out, seed))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help=f"all unless named: {', '.join(PICTURES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5), metavar="N", help="0 to 4 unless given")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where runs are written")
    parser.add_argument("--images", type=Path, default=IMAGES, metavar="DIR", help="where pictures are written")
    parser.add_argument("--train", action="store_true", help="train only; nothing is played or drawn")
    args = parser.parse_args()
    unknown = [name for name in args.pictures if name not in PICTURES]
    if unknown:
        parser.error(f"there is no picture {unknown[0]}; there are {', '.join(PICTURES)}")
    print(conditions(), file=sys.stderr)
    for name in args.pictures or PICTURES:
        runs = train(PICTURES[name], args.seeds, args.out)
        if args.train:
            continue
        groups = [f"{label}={','.join(map(str, paths))}" for label, paths in runs.items()]
        print(f"\n{name}\n\n| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
        for group in groups_of(groups, SettingsReader()):
            print(markdown(line_of_group(group, EPISODES)), flush=True)
        _rlexp("compare", *groups, "--png", args.images / f"results-{name}.png")


def _rlexp(*words: object) -> None:
    """Run a command of rlexp, with its output on stderr; raises CalledProcessError where it fails."""
    subprocess.run([*RLEXP, *map(str, words)], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
