"""The built wheel in new environments: ``make versions``, ``python -m tests.versions [NAME...]``; NAMES are below.

Needs nothing but Python: it builds the wheel, makes an environment for each name, installs torch first, then the wheel,
and lets ``rlexp`` check, train and evaluate. Prints a table; exit status 1 where one failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lowest_versions import ROOT, constraints

NAMES = ("3.11-lowest", "3.11", "3.12", "3.13")
BOUND_S = 1800
NEEDED_GB = 15
"""torch with CUDA takes 6.1 GB, pip's copies of its wheels as much again while it installs."""
SHOWN = ("ray", "torch", "numpy", "gymnasium", "pydantic", "typer")
_TORCH = "torch=="
_VERSIONS = f"from importlib.metadata import version; print(*map(version, {SHOWN!r}))"
_COMMANDS = (
    ("--version",),
    ("--help",),
    ("check", "experiment.yaml"),
    ("run", "experiment.yaml", "-q", "-o", "stop.timesteps_total=5000"),
    ("evaluate", "results/cartpole-dqn", "--episodes", "2"),
)


@dataclass(frozen=True)
class Outcome:
    """A row of the table; ``problem`` is empty where everything worked."""

    name: str
    versions: Sequence[str]
    problem: str

    @property
    def row(self) -> str:
        versions = "".join(f"{version:<14}" for version in self.versions or ["-"] * len(SHOWN))
        return f"{self.name:<13}{versions}{self.problem or 'trains and evaluates'}"


def main(names: Sequence[str]) -> int:
    """Try each environment and print the table."""
    if unknown := [name for name in names if name not in NAMES]:
        print(f"no such environment: {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    with TemporaryDirectory(prefix="rlexp-versions-") as folder:
        wheel = build(Path(folder))
        print(f"{wheel.name}, {wheel.stat().st_size // 1024} kB", flush=True)
        print(f"{'environment':<13}" + "".join(f"{name:<14}" for name in SHOWN) + "result", flush=True)
        outcomes = []
        for name in names or NAMES:
            outcomes.append(try_out(name, wheel, Path(folder)))
            print(outcomes[-1].row, flush=True)
    return 1 if any(outcome.problem for outcome in outcomes) else 0


def build(folder: Path) -> Path:
    """Build the wheel as a release does, from the files of the working tree."""
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder)
    return next(folder.glob("*.whl"))


def try_out(name: str, wheel: Path, folder: Path) -> Outcome:
    """Install the wheel and run its commands; the environment is deleted afterwards, since it may take gigabytes."""
    number, _, lowest = name.partition("-")
    python = find_python(number)
    if python is None:
        return Outcome(name, (), f"left out: no python{number} here")
    if shutil.disk_usage(folder).free < NEEDED_GB * 1e9:
        return Outcome(name, (), f"left out: less than {NEEDED_GB} GB free")
    place = folder / name
    place.mkdir()
    try:
        return Outcome(name, use(python, wheel, place, bool(lowest)), "")
    except subprocess.SubprocessError as error:
        output = getattr(error, "output", None) or ""
        print(f"{name}: {error}\n{output[-3000:]}", file=sys.stderr, flush=True)
        return Outcome(name, (), f"FAILED: {' '.join(map(str, error.cmd[1:6]))}" if hasattr(error, "cmd") else "FAILED")
    finally:
        shutil.rmtree(place)


def find_python(number: str) -> str | None:
    """Return the program of a Python that starts; what a version manager has put on PATH may not."""
    program = shutil.which(f"python{number}")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return program if said.startswith(f"Python {number}.") else None


def use(python: str, wheel: Path, place: Path, lowest: bool) -> Sequence[str]:
    """Make the environment, train in it, and return the versions that it has."""
    allowed = place / "constraints.txt"
    allowed.write_text(constraints() if lowest else fixed_torch(), encoding="utf-8")
    run([python, "-m", "venv", str(place / "venv")], place)
    programs = place / "venv" / "bin"
    install = [
        str(programs / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    run([*install, "--constraint", str(allowed), "torch"], place)
    run([*install, "--constraint", str(allowed), str(wheel)], place)
    shutil.copy(ROOT / "experiments" / "cartpole-dqn.yaml", place / "experiment.yaml")
    for words in _COMMANDS:
        run([str(programs / "rlexp"), *words], place)
    return run([str(programs / "python"), "-c", _VERSIONS], place).split()


def fixed_torch() -> str:
    """Return constraints with the version of torch from constraints.txt, and nothing else."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(_TORCH)) + "\n"


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command without this environment's Python paths; raises SubprocessError with its output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        cwd=folder,
        env=clean(os.environ),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BOUND_S,
    )
    return done.stdout


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out what would let a new environment use packages or runs of another one."""
    return {name: text for name, text in environment.items() if not name.startswith(("PYTHON", "RLEXP_", "RAY_"))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
