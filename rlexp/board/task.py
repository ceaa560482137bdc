"""A trial as a task: whether actors can join it, its description on a board, and an actor's workers from that.

A joined actor makes workers like the trial's own from the description. First it compares the env: its spaces, and a
fingerprint that is equal on two machines if the env plays in the same way. Loads neither torch nor Ray.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
from pydantic import ValidationError

from rlexp.agents.policies import SeatPlayers
from rlexp.agents.registry import policies_of
from rlexp.agents.replay_memory_probe import RandomPolicy
from rlexp.agents.workers import ObservationFilters, PlayedTrial, worker_spec
from rlexp.board.demands import MOST_TRIALS, actor_excess, number_excess
from rlexp.board.messages.address import QUEUE_OF_BOARD
from rlexp.board.messages.basics import Task
from rlexp.board.messages.payloads import Shapes
from rlexp.board.servers.board import Seat
from rlexp.cluster.room.machine import this_machine
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.config.load import LoadOptions, Plan, load_plan
from rlexp.envs.action_masks import like
from rlexp.envs.make import make_vector_env, spaces_of
from rlexp.envs.registry import EnvConfig, env_config_of
from rlexp.errors import TrialError, UsageError
from rlexp.rollout.worker import WorkerSpec
from rlexp.schedules import derive_seed

NOT_OURS: Final = "actors play with the policies of rlexp's own agents, and a package brings this one"
"""Why an agent of another package has no board."""
SUBMITTED_FILE: Final = "submitted.yaml"
_LONGEST_START: Final = 50
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_-]+")
NUM_STEPS = 32
DECIMALS = 3
"""Decimals that are compared, as processors differ in the last digits."""
PROTOCOL: Final = 1
"""Version of descriptions, and of the protocol between actors and trainers."""
_MOST_SHOWN: Final = 40
"""Most letters shown of an invalid protocol."""
_LATE: Final = 10**12
"""Env steps after which a schedule of ε has ended."""
_LONGEST_NAME: Final = 300
"""Longest name of an env or a module, as both are shown."""


def joinable_trial(trials: Sequence[Trial], without: str) -> Trial:
    """Return the only trial; raises UsageError if there are others, or actors cannot join it.

    ``without`` says how its user trains without a board.
    """
    if len(trials) != 1:
        message = f"a board's task is one trial, and here are {len(trials)}"
        raise UsageError(message, f"choose one of the variants with -o KEY=VALUE; or {without}")
    experiment = trials[0].experiment
    reason = experiment.config.board_obstacle
    if experiment.run not in AGENTS:
        reason = NOT_OURS
    if reason is not None:
        raise UsageError(f"actors cannot join {experiment.run} over a board: {reason}", without)
    excess = number_excess(experiment.model_dump(mode="json"))
    if excess is not None:
        raise UsageError(f"the machines of others would not take the task: {excess}", f"lower it, or {without}")
    return trials[0]


def submitted_plan(task: Task, modules: UserModules = NO_MODULES) -> Plan:
    """Return the plan of a submitted task's text; raises ConfigError if it cannot be read.

    The text comes from a stranger: only ``modules`` may be imported, and no agent of an installed package.
    """
    options = LoadOptions(
        modules.imports, module_folders=modules.folders, packaged_agents=False, most_trials=MOST_TRIALS
    )
    with tempfile.TemporaryDirectory(prefix="rlexp-task-") as folder:
        path = Path(folder, SUBMITTED_FILE)
        path.write_text(task.file, encoding="utf-8")
        return load_plan([path], options=options)


def new_task_id(name: str) -> str:
    """Return a unique id, which begins with the name of an experiment."""
    start = _NOT_IN_AN_ID.sub("_", name)[:_LONGEST_START].strip("_") or "task"
    return f"{start}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class TaskDescription:
    """A trial as an actor reads it from a board; nothing in it was imported or made yet."""

    agent: str
    env: str
    config: CommonConfig
    imports: tuple[str, ...]
    seed: int
    spaces: str
    fingerprint: str
    queue: str = QUEUE_OF_BOARD
    """The kind of server for fragments."""

    @property
    def board(self) -> BoardConfig:
        return board_keys_of(self.config)


def describe_trial(config: CommonConfig, trial: PlayedTrial) -> dict[str, Any]:
    """Return the description of a task, of JSON's own types."""
    (agent,) = (name for name, experiment in AGENTS.items() if type(config) is _config_class(experiment))
    return {
        "protocol": PROTOCOL,
        "agent": agent,
        "env": trial.env_config.env,
        "config": config.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "imports": list(trial.env_config.modules.imports),
        "seed": trial.seed,
        "spaces": _text_of(trial.observation_space, trial.action_space),
        "fingerprint": env_fingerprint(trial.env_config),
    }


def read_description(task: Task) -> TaskDescription:
    """Return the description of ``task``; raises TrialError if another version of rlexp wrote it, or it is invalid."""
    given = task.description
    found = given.get("protocol")
    if type(found) is not int or found != PROTOCOL:
        message = f"task {task.id} has protocol {str(found)[:_MOST_SHOWN]}; this rlexp has protocol {PROTOCOL}"
        raise TrialError(message, "install the same version of rlexp at both ends")
    try:
        config = _config_class(AGENTS[given["agent"]]).model_validate(given["config"])
        seed, env = given["seed"], given["env"]
        queue = given.get("queue", QUEUE_OF_BOARD)
        texts = (given["agent"], env, queue, given["spaces"], given["fingerprint"], *given["imports"])
        if (
            type(seed) is not int
            or config.board_keys is None
            or not all(isinstance(text, str) for text in texts)
            or any(len(name) > _LONGEST_NAME for name in (env, *given["imports"]))
        ):
            raise TypeError
    except (KeyError, TypeError, ValidationError) as error:
        message = f"task {task.id} cannot be played by this rlexp"
        raise TrialError(message, "install the same version of rlexp at both ends") from error
    return TaskDescription(
        given["agent"], env, config, tuple(given["imports"]), seed, given["spaces"], given["fingerprint"], queue
    )


class SeatSpecs:
    """Makes the worker specs of one task's seats, on an actor's machine."""

    def __init__(self, description: TaskDescription, modules: UserModules = NO_MODULES) -> None:
        """Make the env and look at it; raises TrialError if it differs from the trainer's.

        ``modules`` are the ones that the actor's user allows to be imported.
        """
        config = self.config = description.config
        # Modules are never taken from the task; their names were compared with the allowed ones.
        made = env_config_of(description.env, config, modules)
        self._env_config = replace(made, num_threads=max(int(config.num_cpus_per_worker), 1))
        self._seed = description.seed
        spaces = spaces_of(self._env_config)
        if _text_of(*spaces) != description.spaces:
            raise TrialError(
                f"env {description.env} has other spaces here than at the trainer: {_text_of(*spaces)}, there"
                f" {description.spaces}",
                "install the same version of the env at both ends",
            )
        if env_fingerprint(self._env_config) != description.fingerprint:
            raise TrialError(
                f"env {description.env} plays in another way here than at the trainer",
                "install the same versions of the env and of Gymnasium at both ends",
            )
        self._env_config = like(self._env_config, spaces[0])
        self._filters = ObservationFilters(config, spaces[0], {}, config.num_workers + description.board.actors)
        agent, env = description.agent, description.env
        experiment = AGENTS[agent].model_construct(name=agent, run=agent, env=env, config=config)
        self._players = policies_of(experiment)(config, *spaces, modules).seat_players()
        self.weights_shapes = _shapes_of(self._players)
        """The shapes of the weights with which its players act."""
        num_weights = sum(math.prod(shape) for shape in self.weights_shapes.values())
        excess = actor_excess(config, this_machine().memory_total, spaces, num_weights)
        if excess is not None:
            raise TrialError(f"the task asks for too much: {excess}", "its trainer has to ask for less")

    def worker_index(self, seat: int) -> int:
        """Return the index of a seat's worker; the trial's own workers come before."""
        return self.config.num_workers + seat

    def spec(self, seat: Seat) -> WorkerSpec:
        """Return the spec of the worker of ``seat``, with own random streams for each epoch."""
        index = self.worker_index(seat.index)
        seed = derive_seed(self._seed, "seat", seat.index, seat.epoch)
        num_threads = self.config.num_threads_per_worker or 1
        spec = worker_spec(self.config, self._env_config, self._filters, self._players.parts, index, seed, num_threads)
        return replace(spec, rollout=replace(spec.rollout, fragment_length=self.config.joined_fragment_length))

    def constant_epsilon(self, seat: int) -> float | None:
        """Return the mean ε of a seat's envs; None if it changes over time, or they do not explore by ε."""
        first, last = (self._players.mean_epsilon(self.worker_index(seat), num_steps) for num_steps in (0, _LATE))
        return first if first == last else None


def board_keys_of(config: CommonConfig) -> BoardConfig:
    """Return the keys for joined actors, of an agent that they can join."""
    assert config.board_keys is not None  # others have an obstacle, and were refused before
    return config.board_keys


def _config_class(experiment: Any) -> type[CommonConfig]:
    found: type[CommonConfig] = experiment.model_fields["config"].annotation
    return found


def _shapes_of(players: SeatPlayers) -> Shapes:
    """Return the shapes of a network's weights; raises TrialError if this machine cannot make it."""
    try:
        return players.weights_shapes
    except UsageError as error:  # a user's own torso is missing here, or differs
        raise TrialError(error.message, error.hint) from error
    except ModuleNotFoundError as error:
        message = f"its network is not made of fully connected layers alone, and needs {error.name}"
        raise TrialError(f"{message}, which is not installed here", f"pip install {error.name}") from error


def env_fingerprint(config: EnvConfig) -> str:
    """Return a hash of an env's observations and rewards from ``reset(seed=0)`` on, for 32 fixed actions.

    Envs that draw from other random streams than their own have another hash each time.
    """
    vector = make_vector_env(config, 1)
    try:
        policy = RandomPolicy(vector.single_action_space, vector.single_observation_space)
        seen = [obs := vector.reset(seed=0)[0]]
        digest = hashlib.sha256()
        for _ in range(NUM_STEPS):
            obs, rewards, terminated, truncated, _ = vector.step(policy.compute_actions(obs))
            seen += [obs, rewards, terminated, truncated]
        for array in seen:
            digest.update(_rounded(np.asarray(array)).tobytes())
        return digest.hexdigest()[:16]
    finally:
        vector.close()


def _rounded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind != "f":
        return array
    return array.astype(np.float64).round(DECIMALS) + 0.0  # without the sign of zeros


def _text_of(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> str:
    """Return two spaces as text that differs if they do; long bounds by their hash."""
    texts = []
    for space in (observation_space, action_space):
        text = repr(space)
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        if low is not None and high is not None:
            text += " " + hashlib.sha256(low.tobytes() + high.tobytes()).hexdigest()[:12]
        texts.append(text)
    return " and ".join(texts)
