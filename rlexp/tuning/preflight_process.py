"""The process that makes envs and a user's classes before a run: ``python -m rlexp.tuning.preflight_process FD``.

Reads a request (JSON) from the first line of stdin, and writes messages to the descriptor FD: a line of JSON each, of
the kinds ``stage`` (what begins now), ``report``, ``error`` and ``done``. When stdin ends, the command has ended: then
this process kills itself and all processes that the envs have started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from textwrap import shorten
from typing import Any, Final

from rlexp.agents.replay_memory_probe import NUM_STEPS, bytes_per_transition_above, check_replay_fits
from rlexp.cluster.room.machine import Machine
from rlexp.config.keys.agents import experiment_class
from rlexp.config.keys.common import MOST_CHECKPOINTED_BYTES
from rlexp.config.keys.env_ids import is_atari
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.model import CUSTOM_MODEL
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.action_masks import MaskReader, mask_reader_of_env
from rlexp.envs.checked_env import given_env
from rlexp.envs.env_check import EPISODES, EnvCheck
from rlexp.envs.make import make_env, make_filmed_env, spaces_of
from rlexp.envs.parallel_envs import OneAgent
from rlexp.envs.registry import Env, EnvConfig, env_config_of
from rlexp.envs.spaces import check_spaces, observation_bytes, observation_shape
from rlexp.envs.wrappers import images_in, is_image
from rlexp.errors import EnvError, Problem, ResourceError, RlexpError
from rlexp.processes.child import Message, Send, answer
from rlexp.rollout.user_callbacks import callback_classes
from rlexp.terminal.checking import EnvReport

LEAST_STEPS_FOR_REWARDS: Final = 1_000
"""Random steps without any reward that are worth a word."""
LARGE_IMAGE: Final = 128
"""Pixels of a side from which on the default convolutions are slow."""


def try_experiments(request: Message, send: Send) -> None:
    """Try the env of every experiment of a ``request``, each once, and whether replay fits into memory."""
    modules = UserModules.of(request["modules"])
    machine = Machine(**request["machine"])
    tried: list[tuple[EnvConfig, EnvReport, int]] = []
    for data in request["experiments"]:
        experiment = experiment_class(data["run"]).model_validate(data)
        env_config = env_config_of(experiment.env, experiment.config, modules)

        def begin(stage: str, experiment: Experiment = experiment) -> None:
            send("stage", stage=stage, experiment=experiment.name, env=experiment.env)

        known = next((each for each in tried if each[0] == env_config), None)
        if known is None:
            report, size = try_env(experiment, env_config, begin, request["plays_episodes"])
            if request["copies_trials"]:
                report = replace(report, notices=(*report.notices, *_replay_notices(experiment, env_config, size)))
            send("report", **asdict(report), experiment=experiment.name)
            known = env_config, report, size
            tried.append(known)
        _, report, size = known
        if report.errors:
            continue
        if experiment.config.model.custom_model is not None:
            begin(f"making the network of {CUSTOM_MODEL}")
            try_network(experiment, env_config)
        callbacks = callback_classes(experiment.config.callback_parts, modules)
        if callbacks is not None:
            begin("making the callbacks")
            callbacks.make("the check before training")
        if len(report.observation_shape) > 1 and experiment.config.observation_filter != "NoFilter":
            begin("making the filter of observations")
            try_filter(experiment, env_config)
        if experiment.config.replay is not None:
            begin(f"{NUM_STEPS} random steps, which measure the memory of replay,")
            check_replay_fits(experiment, env_config, size, machine)


def try_env(
    experiment: Experiment, env_config: EnvConfig, begin: Callable[[str], None], plays_episodes: bool
) -> tuple[EnvReport, int]:
    """Return the report on an env, and the bytes of an observation; raises UsageError or EnvError.

    ``plays_episodes``: whole episodes are played, and the report has the errors of all of them.
    """
    begin("making it")
    with closing(make_env(env_config)) as env:
        check_spaces(env_config, env.observation_space, env.action_space)
        masks = _masks(env, env_config, begin)
        errors, warnings = _played(experiment, env, begin, plays_episodes, masks)
        seen = env.observation_space if masks is None else masks.without_mask(env.observation_space)
        report = EnvReport(
            env=experiment.env,
            observation_space=_on_one_line(given_env(env).observation_space),
            action_space=_on_one_line(given_env(env).action_space),
            observation_shape=observation_shape(seen),
            notices=tuple(_notices(experiment, env, is_image(seen))),
            action_masks=None if masks is None else str(masks),
            warnings=warnings,
            errors=errors,
        )
        size = observation_bytes(env.observation_space if masks is None else masks.space(env.observation_space))
        begin("close")
    if experiment.config.monitor and not errors:
        begin("rendering a picture")
        make_filmed_env(env_config).close()
    return report, size


def _masks(env: Env, env_config: EnvConfig, begin: Callable[[str], None]) -> MaskReader | None:
    """Return the reader of the env's action masks; None if it has none, or cannot be reset, which is reported later."""
    begin("reset of episode 1")
    try:
        return mask_reader_of_env(env, env_config)
    except EnvError:
        return None


def _played(
    experiment: Experiment, env: Env, begin: Callable[[str], None], plays_episodes: bool, masks: MaskReader | None
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return the errors of an env, and its warnings; without ``plays_episodes`` an error is raised."""
    check = EnvCheck(experiment.env, env, begin, masks)
    if not plays_episodes:
        return (), tuple(doubt.message for doubt in check.first_steps())
    doubts = list(check.doubts(EPISODES))
    errors = tuple(Problem("", doubt.message, doubt.hint) for doubt in doubts if doubt.is_error)
    warnings = [doubt.message for doubt in doubts if not doubt.is_error]
    limit = env.spec.max_episode_steps if env.spec is not None else None
    if not errors and not check.num_ended and (experiment.config.horizon or limit) is None:
        warnings.append(
            f"no episode has ended in {check.num_steps} steps: without an end there is no episode_reward_mean; "
            "config.horizon cuts episodes"
        )
    if not errors and not check.has_rewards and check.num_steps >= LEAST_STEPS_FOR_REWARDS:
        warnings.append(
            f"every reward of {check.num_steps} random steps was 0: an agent learns only from rewards that it finds by "
            "chance"
        )
    return errors, tuple(warnings)


def try_network(experiment: Experiment, env_config: EnvConfig) -> None:
    """Make the acting network, with the user's own torso; raises UsageError if that is not valid."""
    from rlexp.agents.registry import policies_of  # and torch with the network: most experiments need neither here

    policies_of(experiment)(experiment.config, *spaces_of(env_config), env_config.modules).make_policy()


def try_filter(experiment: Experiment, env_config: EnvConfig) -> None:
    """Make the filter of observations, which takes any vectors; raises UsageError for images."""
    from rlexp.agents.workers import ObservationFilters  # and all that plays: most experiments need none of it here

    ObservationFilters(experiment.config, spaces_of(env_config)[0], {})


def _replay_notices(experiment: Experiment, env_config: EnvConfig, size: int) -> Iterator[str]:
    """Yield that checkpoints leave replay out, which trials of a population copy; ``size``: bytes of an observation."""
    replay = experiment.config.replay
    is_open = replay is not None and replay.in_checkpoints is None
    if is_open and bytes_per_transition_above(MOST_CHECKPOINTED_BYTES, experiment, env_config, size) is not None:
        most = f"{MOST_CHECKPOINTED_BYTES // 10**6} MB"
        yield (
            f"full replay takes more than {most}, so checkpoints leave it out, and a trial that copies another one "
            "starts with an empty replay: set config.checkpoint_replay: true, or a smaller config.buffer_size"
        )


def _on_one_line(space: object) -> str:
    return " ".join(str(space).split())


def _notices(experiment: Experiment, env: Env, shows_an_image: bool) -> Iterator[str]:
    """Yield notices about several agents, and about images that are not Atari frames."""
    own, seen = given_env(env), env.observation_space
    given = own.observation_space
    if isinstance(own, OneAgent):
        yield f"all {len(own.agents)} agents learn one policy: {shorten(', '.join(map(str, own.agents)), 60)}"
    is_split = experiment.config.model.custom_preprocessor is None and not shows_an_image
    for name in images_in(given) if is_split else ():
        yield f"the image {name!r} becomes part of a vector: only an observation that is one image has convolutions"
    if not (is_image(given) and is_image(seen)):
        return
    model = experiment.config.model
    height, width = seen.shape[:2]
    if model.dim is not None and given.shape[:2] != (height, width) and not is_atari(experiment.env):
        yield f"images of {given.shape[0]}x{given.shape[1]} pixels are scaled to {height}x{width} (config.model.dim)"
    is_default = model.dim is None and model.conv_filters is None and model.custom_model is None
    if is_default and max(height, width) > LARGE_IMAGE:
        yield f"images of {height}x{width} pixels make a large network: set config.model.dim or conv_filters"


def serve(request: Message, send: Send) -> None:
    """Answer the request of the command."""
    threading.Thread(target=_end_with_command, daemon=True).start()
    stage: dict[str, Any] = {}

    def send_with_stage(kind: str, **content: Any) -> None:
        if kind == "stage":
            stage.update(content)
        send(kind, **content)

    try:
        try_experiments(request, send_with_stage)
        send("done")
    except RlexpError as error:
        is_resource = isinstance(error, ResourceError)
        send("error", **stage, message=error.message, hint=error.hint, is_resource=is_resource)


def _end_with_command() -> None:
    """Kill this process and its children after the other end of stdin is closed."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    answer(serve)
