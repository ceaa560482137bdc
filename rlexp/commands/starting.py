"""Commands to begin with: ``examples`` copies the experiments that come with rlexp, ``init`` writes one for an env."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

from rlexp.commands.command import argument, option
from rlexp.commands.completion import complete_agent, complete_env, complete_example
from rlexp.commands.options import AsJson, Debug
from rlexp.config.examples import Example, examples_folder
from rlexp.config.examples import examples as all_examples
from rlexp.errors import UsageError
from rlexp.terminal.examples import print_begun, print_copied, print_examples

_USUAL_ENV: Final = "CartPole-v1"
_USUAL_AGENTS: Final = ("-apex", "-dqn", "-ppo")
"""Ends of names of examples that are offered first."""
_KEY_LINE: Final = re.compile(r"(?P<begin>(?P<indent> +)(?P<key>\w+): .*?)(?: +# (?P<comment>.*))?")
_COMMENT_COLUMN: Final = 37
_LONGEST_COMMENT: Final = 80
_COMMENTS: Final[Mapping[str, str]] = {
    "run": "The agent: DQN, APEX, PPO, PQN, SAC, TD3 or another one; rlexp explain run names all",
    "env": "A Gymnasium id, or module:Class of a module beside this file",
    "stop": "Training ends when one of these is reached",
    "checkpoint_at_end": "Also when the training ends",
    "config.seed": "The same numbers each time; without it, other ones",
    "config.num_envs_per_worker": "Copies of the env that are stepped together",
    "config.sample_batch_size": "Steps of each copy of the env before the learner gets them",
    "config.batch_mode": "truncate_episodes or complete_episodes",
    "config.observation_filter": "MeanStdFilter standardises observations, NoFilter does not",
    "config.lr_schedule": "[step, learning rate]; linear in between",
    "config.n_step": "Rewards added up in one transition before bootstrapping",
    "config.train_batch_size": "Transitions that the learner gets at once",
    "config.learning_starts": "Transitions in replay before the learner starts",
    "config.target_network_update_freq": "Steps between two copies of the weights to the target network",
    "config.schedule_max_timesteps": "The whole that exploration_fraction is a part of",
    "config.exploration_fraction": "The part of it over which random actions become fewer",
    "config.epsilon_ladder": "env: each env has its own share of random actions",
    "config.discretize_actions": "Values of each continuous action",
    "config.kl_coeff": "Penalty on the KL divergence from the policy that sampled; 0: clipping alone",
    "config.num_sgd_iter": "Epochs: how often each transition of a train batch is used",
    "config.vf_loss_coeff": "Weight of the loss of the value function",
    "config.vf_clip_param": "How far a value can move in one train batch",
    "config.hiddens": "Sizes of the layers of each head, after the layers of model",
    "config.metrics_smoothing_episodes": "Newest episodes that episode_reward_mean is taken over",
    "config.tau": "Share of the way that the target networks move",
    "config.noise_stdev": "Standard deviation of the changes of the weights",
    "config.l2_coeff": "Pulls the weights towards 0",
    "config.num_rollouts": "Directions of an update, each played there and back",
    "config.max_policy_lag": "Updates; older steps are dropped, and workers wait before that",
    "config.actor_hiddens": "Sizes of the layers of the policy",
    "config.critic_hiddens": "Sizes of the layers of a critic",
    "config.model": "The network: its layers and activations",
    "config.optimizer": "How experience moves",
}
"""Short comments for keys whose docstrings begin with a long sentence."""
_GOAL: Final = ("stop.episode_reward_mean=0.9", "stop.timesteps_total=200000")
"""When an experiment with the env of ``_ENV`` ends: the best mean return is about 0.95."""
_HEAD: Final = """\
# {agent} on {env}. rlexp explain KEY says more about a line, rlexp explain {agent} lists all keys.
#   rlexp check --env {file}    finds mistakes in this file and in the env
#   rlexp run {file}            trains; Ctrl-C stops with a checkpoint, and rlexp resume goes on
#   rlexp run {file} --seed 1   the same with another seed; --seeds 5 trains with five
"""
_ENV: Final = '''\
"""An env to begin with: replace what it does, and keep what test_MODULE.py asks of it."""

import gymnasium
import numpy as np


class NAME(gymnasium.Env):
    """Walk along a line to a target that is drawn anew for each episode.

    Actions: 0 walks left, 1 stays, 2 walks right. Each step costs 0.01, the target pays 1.
    """

    def __init__(self, max_steps=50):
        # Keyword arguments come from env_config in the experiment file.
        self.max_steps = max_steps
        # What the agent sees: its position and the target. Networks learn best from numbers near 1.
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # it seeds self.np_random, from which everything random is drawn
        self.position, self.target = map(float, self.np_random.uniform(-1, 1, 2))
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.position = min(max(self.position + 0.1 * (int(action) - 1), -1.0), 1.0)
        reached = abs(self.position - self.target) < 0.1
        # terminated: the task has ended. truncated: only the time is over, so the last state keeps a value.
        truncated = not reached and self.steps >= self.max_steps
        return self._observation(), 1.0 if reached else -0.01, reached, truncated, {}

    def _observation(self):
        return np.array([self.position, self.target], np.float32)
'''
_ENV_TEST: Final = '''\
"""What NAME has to keep, whatever it does. rlexp check --env asks for more."""

import numpy as np
from gymnasium.utils.env_checker import check_env
from MODULE import NAME


def test_keeps_the_rules_of_gymnasium():
    check_env(NAME(), skip_render_check=True)


def test_a_seed_repeats_an_episode():
    first, second = NAME(), NAME()
    np.testing.assert_array_equal(first.reset(seed=1)[0], second.reset(seed=1)[0])
    for action in (0, 1, 2, 2):
        np.testing.assert_array_equal(first.step(action)[0], second.step(action)[0])


def test_target_is_reached_by_walking_to_it():
    env = NAME()
    (position, target), _ = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        (position, target), reward, terminated, truncated, _ = env.step(2 if position < target else 0)
        total, ended = total + reward, terminated or truncated
    assert terminated
    assert total > 0.7


def test_time_limit_truncates_and_does_not_terminate():
    env = NAME(max_steps=3)
    env.reset(seed=0)
    env.position, env.target = -1.0, 1.0
    ends = [env.step(1)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
'''


def examples(
    name: Annotated[str | None, argument("NAME", "The example to copy.", complete_example)] = None,
    out: Annotated[Path | None, option("--out PATH", "Folder or file to write, instead of this folder.")] = None,
    prints: Annotated[bool, option("--print", "Print the file instead of copying it.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the examples, or copy one of them to this folder.

    The list has the score that each example reached and the time that it took. A copy comes with the Python files
    that it needs. Nothing is overwritten.
    """
    if name is None:
        if out is not None or prints:
            raise UsageError(
                f"{'--print' if prints else '--out'} needs the name of an example", "rlexp examples lists them"
            )
        print_examples(_all(), as_json)
        return
    example = _example(name)
    if prints:
        if out is not None or as_json:
            option = "--json" if as_json else "--out"
            raise UsageError(f"--print cannot be combined with {option}", "leave one of them out")
        print(example.path.read_text(encoding="utf-8"), end="")
        return
    print_copied(example, _copied(example, out), as_json)


def _all() -> tuple[Example, ...]:
    found = all_examples()
    if not found:
        raise UsageError(
            f"no examples in {examples_folder()}", "install rlexp again: pip install --force-reinstall rlexp"
        )
    return found


def _example(name: str) -> Example:
    by_name = {example.name: example for example in _all()}
    stem = name.removesuffix(".yaml")
    if stem in by_name:
        return by_name[stem]
    begun = [each for each in by_name if each.startswith(f"{stem.lower()}-")]
    close = (
        sorted(begun, key=lambda each: not each.endswith(_USUAL_AGENTS))
        or get_close_matches(stem.lower(), by_name, n=3, cutoff=0.5)
        or [each for each in by_name if stem.lower() in each]
    )
    hint = f"did you mean {' or '.join(close[:3])}?" if close and stem else "rlexp examples lists them"
    raise UsageError(f"unknown example {name}", hint)


def _copied(example: Example, out: Path | None) -> list[Path]:
    """Copy an example with the files that it needs; return the copies. Raises UsageError if one of them exists."""
    out = Path() if out is None else out
    is_file = out.suffix in (".yaml", ".yml") and not os.path.isdir(out)
    folder = out.parent if is_file else out
    targets = [out if is_file and path == example.path else folder / path.name for path in example.files]
    create(folder, targets)
    for source, target in zip(example.files, targets, strict=True):
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror}", "name another file") from error
    return targets


def create(folder: Path, files: Sequence[Path]) -> None:
    """Make a folder for files that are to be written; raises UsageError if one of them exists."""
    taken = [str(file) for file in files if os.path.lexists(file)]
    if taken:
        verb = "exists" if len(taken) == 1 else "exist"
        raise UsageError(f"{' and '.join(taken)} {verb}", "nothing was written; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}", "name another folder") from error


def init(
    folder: Annotated[Path, argument("DIR", "Folder to write to, instead of this one.")] = Path(),
    env: Annotated[
        str | None, option("--env ENV", "The env: a Gymnasium id, or module:Class.", autocompletion=complete_env)
    ] = None,
    env_class: Annotated[
        str | None, option("--env-class NAME", "Also write a small env of this name, and its test.")
    ] = None,
    algo: Annotated[str, option("--algo --run AGENT", "The agent.", autocompletion=complete_agent)] = "PPO",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write an experiment file with a comment at each line, to begin with.

    It has the settings of rlexp run --algo AGENT --env ENV. With --env-class it comes with an env to change. Nothing
    is overwritten.
    """
    if env is not None and env_class is not None:
        raise UsageError("--env cannot be combined with --env-class", "--env-class writes an env, --env names one")
    agent = _known_agent(algo)
    _check_folder(folder)
    if env_class is None:
        print_begun([_write_experiment(folder, agent, env or _USUAL_ENV)], as_json)
    else:
        print_begun(_write_env(folder, agent, env_class), as_json)


def _check_folder(folder: Path) -> None:
    """Raise UsageError if an env or a file was given in place of a folder that exists."""
    from rlexp.config.keys import env_ids

    if os.path.isdir(folder):
        return
    if ":" in folder.name or (env_ids.ENV_ID.fullmatch(str(folder)) and env_ids.is_known(str(folder))):
        raise UsageError(f"{folder} is an env, not a folder", f"rlexp init --env {folder}")
    if folder.suffix in (".yaml", ".yml", ".py"):
        raise UsageError(
            f"{folder} is a file, not a folder", "name a folder: the file is named after its env and agent"
        )


def _known_agent(algo: str) -> str:
    from rlexp.config.keys.agents import AGENTS, find_agent

    agent = find_agent(algo)
    if agent is None:
        close = get_close_matches(algo.upper(), AGENTS, n=1)
        raise UsageError(
            f"unknown agent {algo}", f"did you mean {close[0]}?" if close else f"one of {', '.join(AGENTS)}"
        )
    return agent


def _write_experiment(folder: Path, agent: str, env: str, overrides: Sequence[str] = ()) -> Path:
    """Write the file of an experiment, named after its env and agent; raises UsageError if it exists."""
    file = _experiment_file(folder, agent, env)
    text = None if os.path.lexists(file) else _experiment_text(folder, agent, env, file.stem, overrides)
    create(folder, [file])
    file.write_text(str(text), encoding="utf-8")
    return file


def _write_env(folder: Path, agent: str, name: str) -> list[Path]:
    """Write an experiment, its env and the test of that; raises UsageError if one of them exists."""
    module = _module_of(name)
    env, files = f"{module}:{name}", [folder / f"{module}.py", folder / f"test_{module}.py"]
    if os.path.exists(files[0]):
        other = f"rlexp init {shlex.quote(str(folder))} --env {env} --algo {agent}"
        raise UsageError(f"{files[0]} exists", f"{other} writes an experiment for it")
    create(folder, [_experiment_file(folder, agent, env), *files])
    try:
        for file, text in zip(files, (_ENV, _ENV_TEST), strict=True):
            file.write_text(text.replace("NAME", name).replace("MODULE", module), encoding="utf-8")
        return [_write_experiment(folder, agent, env, _GOAL), *files]
    except BaseException:  # nothing is left of what could not be finished
        for file in files:
            file.unlink(missing_ok=True)
        raise


def _module_of(name: str) -> str:
    """Return the module for a class, ``grid_walk`` for ``GridWalk``; raises UsageError if it cannot be one."""
    from rlexp.user_code.finding import find_module

    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or not name[0].isupper():
        words = re.findall(r"[A-Za-z][A-Za-z0-9]*", name) if name.isascii() else []
        meant = "".join(word[0].upper() + word[1:] for word in words) or "GridWalk"
        raise UsageError(f"--env-class {name} is not the name of a class", f"for example --env-class {meant}")
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    if keyword.iskeyword(module) or find_module(module, ()) is not None:
        raise UsageError(f"--env-class {name}: there is a module {module} already", "name the class otherwise")
    return module


def _experiment_file(folder: Path, agent: str, env: str) -> Path:
    """Return the file for an env and an agent: ``cartpole-ppo.yaml`` for CartPole-v1."""
    return folder / f"{_words_of(env)}-{agent.lower()}.yaml"


def _words_of(env: str) -> str:
    """Return the words of file names: ``cartpole`` for ``CartPole-v1``; the class name for an env that is a class."""
    name = re.sub(r"(NoFrameskip)?-v\d+$", "", env.rpartition(":")[2])
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "env"


def _experiment_text(folder: Path, agent: str, env: str, name: str, overrides: Sequence[str]) -> str:
    """Return a file with the settings of ``rlexp run --algo --env``, and a comment at each line."""
    from rlexp.cluster.room.machine import check_requirements
    from rlexp.cluster.session import OWN
    from rlexp.commands.answers import preset_plan
    from rlexp.commands.requests import load_options
    from rlexp.config.keys.user_code import folders_for
    from rlexp.config.yaml.python_values import ExperimentText
    from rlexp.tuning.request import Source, TrainingRequest

    reading = replace(load_options(None, False, True, OWN), module_folders=folders_for([folder / name]))
    request = TrainingRequest("run", source=Source(agent=agent, env=env, name=name), overrides=tuple(overrides))
    plan = preset_plan(request, reading)
    check_requirements(plan)
    (source,) = plan.sources
    assert isinstance(source, ExperimentText)
    head = _HEAD.format(agent=agent, env=env, file=f"{name}.yaml")
    return head + commented(source.text, agent)


def commented(text: str, agent: str) -> str:
    """Return an experiment with a comment after each key; comments that are there stay."""
    from rlexp.config.keys.key_table import key_table

    keys = {".".join(path): key.meaning for path, key in key_table(agent).items()}
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "".join(f"{_with_comment(line, keys)}\n" for line in lines)


def _with_comment(line: str, meanings: Mapping[str, str]) -> str:
    found = _KEY_LINE.fullmatch(line)
    if found is None:
        return line
    key = found["key"] if len(found["indent"]) == 2 else f"config.{found['key']}"
    words = found["comment"] or _COMMENTS.get(key) or _first_sentence(meanings.get(key, ""))
    begin = f"{found['begin']}  ".ljust(_COMMENT_COLUMN)
    return f"{begin}# {words[0].upper()}{words[1:]}" if words else line


def _first_sentence(text: str) -> str:
    """Return the beginning of a docstring without references to papers; nothing if it is long."""
    plain = re.sub(r"\s*\([^()]*\d{4}[^()]*\)", "", " ".join(text.replace("``", "").split()))
    sentence = re.split(r"[.;](?:\s|$)", plain, maxsplit=1)[0]
    return sentence if len(sentence) <= _LONGEST_COMMENT else ""
