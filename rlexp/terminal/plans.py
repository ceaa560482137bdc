"""Plans: the trials that files make, and what is worth knowing about them."""

from __future__ import annotations

from typing import Any

from rlexp.config.experiment import required_cpus, required_gpus
from rlexp.config.plan import Plan
from rlexp.config.trial import Trial
from rlexp.errors import RlexpError
from rlexp.terminal.paint import aligned
from rlexp.terminal.problems import print_notice


def print_notices(plan: Plan) -> None:
    """Print a plan's notices to stderr, a line each."""
    for notice in plan.notices:
        print_notice(notice)


def print_plan(plan: Plan) -> None:
    """Print a line for each of a plan's trials to stdout."""
    rows = [_table_row(trial) for trial in plan.trials]
    for line in aligned([("trial", "agent", "env", "CPUs", "varied", "stop"), *rows]):
        print(line)


def plan_as_json(plan: Plan | None, error: RlexpError | None) -> dict[str, Any]:
    """Return what ``--json`` prints: ``notices``, ``trials`` and ``problems``, each a list."""
    return {
        "notices": [vars(notice) for notice in plan.notices] if plan else [],
        "trials": [_trial_as_json(trial) for trial in plan.trials] if plan else [],
        "problems": [vars(problem) for problem in error.problems] if error else [],
    }


def _trial_as_json(trial: Trial) -> dict[str, Any]:
    experiment = trial.experiment
    return {
        "index": trial.index,
        "name": trial.name,
        "experiment": experiment.name,
        "run": experiment.run,
        "env": experiment.env,
        "varied": trial.varied,
        "sample": trial.sample,
        "seed": experiment.config.seed,
        "stop": experiment.stop,
        "cpus": required_cpus(experiment),
        "gpus": required_gpus(experiment),
    }


def _table_row(trial: Trial) -> tuple[str, ...]:
    experiment = trial.experiment
    varied = ", ".join(f"{key}={value}" for key, value in trial.varied.items())
    stop = ", ".join(f"{metric} {number}" for metric, number in experiment.stop.items())
    cpus = f"{required_cpus(experiment):g}"
    return trial.name, experiment.run, experiment.env, cpus, varied or "-", stop or "-"
