"""Preflight: the envs of a run are tried before the run exists, in a process that cannot harm the command.

An env is code of its user: it may hang, end its process, ignore signals, change the current folder or print. So the
command itself makes no env; it starts :mod:`rlexp.tuning.preflight_process` and waits for its messages with a time
limit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rlexp.cluster.room.machine import Machine
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import ConfigError, Problem, ResourceError, RlexpError, UsageError
from rlexp.processes.child import ChildProcess, Message
from rlexp.processes.family import SESSION, family_of, kill
from rlexp.terminal.checking import EnvReport

START_TIMEOUT_S: Final = 60.0
"""Seconds that the process may take to start and import; afterwards each step may take ``sample_timeout_s``."""
_MODULE: Final = "rlexp.tuning.preflight_process"

Places = Mapping[tuple[str, str], str]
"""The place in a file, ``pong.yaml:3:8``, at which an experiment (its name) has an env (its id)."""


def try_envs(
    trials: Sequence[Trial],
    modules: UserModules,
    machine: Machine,
    places: Places,
    copies_trials: bool = False,
    plays_episodes: bool = False,
) -> list[EnvReport]:
    """Make, reset, step and close the envs of ``trials``, and measure the memory of their replay.

    ``copies_trials``: the trials copy each other's checkpoints; a notice says if these leave replay out.
    ``plays_episodes``: whole episodes are played for some seconds, and the reports have all of their errors. Raises
    ConfigError, with the env's place, if that fails, takes too long or ends the process. Raises ResourceError if the
    ``machine`` has too little memory.
    """
    experiments = list({_env_essence(trial): trial.experiment for trial in trials}.values())
    request = {
        "experiments": [experiment.model_dump(mode="json", by_alias=True) for experiment in experiments],
        "modules": asdict(modules),
        "machine": asdict(machine),
        "copies_trials": copies_trials,
        "plays_episodes": plays_episodes,
    }
    timeout_s = max((experiment.config.sample_timeout_s for experiment in experiments), default=0.0)
    reports: list[EnvReport] = []
    with PreflightProcess(request) as process:
        for message in process.messages(timeout_s):
            if message["kind"] == "error":
                raise _error_of(message, places)
            if message["kind"] == "report":
                reports.append(_report_of(message, places.get((message["experiment"], message["env"]), "")))
    return reports


def _env_essence(trial: Trial) -> str:
    """Return an experiment as text, without keys that change neither env nor replay; trials of a grid share it."""
    return trial.experiment.model_dump_json(exclude={"config": {"seed": True, "lr": True}, "stop": True})


def _report_of(message: Message, where: str) -> EnvReport:
    return EnvReport(
        env=message["env"],
        observation_space=message["observation_space"],
        action_space=message["action_space"],
        observation_shape=tuple(message["observation_shape"]),
        notices=tuple(message["notices"]),
        action_masks=message["action_masks"],
        warnings=tuple(message["warnings"]),
        errors=tuple(Problem(where, error["message"], error["hint"]) for error in message["errors"]),
    )


def _error_of(message: Message, places: Places) -> RlexpError:
    if message["is_resource"]:
        return ResourceError(message["message"], message["hint"])
    where = places.get((message["experiment"], message["env"]))
    if where is None:
        return UsageError(message["message"], message["hint"])
    return ConfigError([Problem(where, message["message"], message["hint"])])


class PreflightProcess:
    """Owns the process that makes the envs, and all processes that they start; all have ended after ``with``."""

    def __init__(self, request: Message) -> None:
        self._mark = Path(f"preflight-{uuid.uuid4().hex}")
        self._child = ChildProcess(_MODULE, request, {SESSION: str(self._mark)})

    def __enter__(self) -> PreflightProcess:
        return self

    def __exit__(self, *error: object) -> None:
        kill(family_of(self._mark))  # also processes that an env has put into another process group
        self._child.close()

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """Yield its messages until it is done; an ``error`` if none comes for too long, or the process dies."""
        stage: Message = {"stage": "the start of its process", "experiment": "", "env": ""}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                message = self._child.message(deadline - time.monotonic())
            except TimeoutError:
                what = f"{stage['stage']} has not ended within {timeout_s:g} s"
                message = _error(stage, what, "correct the env, or give it more time with sample_timeout_s")
            if message is None:
                what, last = f"its process {self._child.how_it_ended()} in {stage['stage']}", self._child.last_line()
                hint = "an env must not end its process: raise an exception instead"
                message = _error(stage, what, f"it printed last: {last}" if last else hint)
            if message["kind"] == "stage":
                stage, deadline = message, time.monotonic() + timeout_s
            if message["kind"] != "done":
                yield message
            if message["kind"] in ("done", "error"):
                return


def _error(stage: Message, what: str, hint: str) -> Message:
    message = f"env {stage['env']}: {what}"
    return {**stage, "kind": "error", "is_resource": False, "message": message, "hint": hint}
