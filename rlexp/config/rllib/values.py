"""Values in RLlib's spelling to ours, if a new name is not enough: a step for each, of one variant without grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from rlexp.config.keys.agents import built_in_base
from rlexp.config.keys.env_ids import BULLET_CART_POLE, CUT_AFTER, RLLIB_ENVS, current_env
from rlexp.config.keys.fields import AUTO
from rlexp.config.keys.key_table import Key, key_table
from rlexp.config.keys.metrics import current_metric
from rlexp.config.rllib.ages import shows_images
from rlexp.config.rllib.exploration import epsilon, exploration_type, noise_schedule
from rlexp.config.rllib.groups import (
    custom_model,
    learner_gpu,
    learner_per_gpu,
    learning_workers,
    optimizer_class,
    policies,
    replay_buffer_type,
    sizes_for_each,
    trial_resources,
    worker_resources,
)
from rlexp.config.rllib.names import read_literal
from rlexp.config.translation import Translation, node_of
from rlexp.config.yaml.nodes import Node, dotted, shown, written, written_keys

_DEFAULT_IF_AUTO = ("evaluation_num_episodes", "train_batch_size", "num_cpus_per_learner")
_DEFAULT_CALLBACKS = "DefaultCallbacks"
_NO_CALLBACKS: tuple[object, ...] = (
    *(None, False, {}, [], f"<{_DEFAULT_CALLBACKS}>"),
    *(f"ray.rllib.{package}.callbacks.{_DEFAULT_CALLBACKS}" for package in ("agents", "algorithms")),
)
_CALLBACKS_HINT = "write a class that derives from rlexp.callbacks.Callbacks: callbacks: package.module:Class"
_LAYERS = "config.model.fcnet_hiddens"
_ACTIVATIONS = {"silu": "swish", "none": "linear", "identity": "linear"}


def use_current_values(translation: Translation) -> None:
    """Bring the values of an experiment without grids, whose keys have current names, into current form."""
    for step in _STEPS:
        step(translation)


def _literals(translation: Translation) -> None:
    """Read strings in Python's spelling: ``None``, ``True,``, ``(256, 256)``."""
    table = key_table(translation.run)
    for path, node in translation.nodes().items():
        key = table.get(path)
        if key is None or not isinstance(node.value, str) or (key.takes_strings and not _is_none(key, node.value)):
            continue
        value = read_literal(node.value)
        if value is not node.value:
            translation.put(".".join(key.path), value, node)
            translation.notice(node, f"{dotted(key.path)}: {shown(node.value)} is read as {written(value)}")


def _is_none(key: Key, text: str) -> bool:
    """Return whether a string is Python's null, at a key that takes null and chooses between words."""
    return text == "None" and key.takes_null and "a string" not in key.expects


def _schedules(translation: Translation) -> None:
    """Read RLlib 2's schedule in place of a number: ``lr: [[0, 1e-3], [100000, 1e-4]]``."""
    for key in ("lr", "entropy_coeff"):
        node = translation.find(f"config.{key}")
        if node is None or not isinstance(node.value, tuple) or ("config", key) not in key_table(translation.run):
            continue
        if not all(isinstance(point.value, tuple) for point in node.value):
            continue  # a list of numbers is not a schedule, but perhaps a grid
        translation.take(f"config.{key}")
        translation.put_instead(node, f"config.{key}", f"config.{key}_schedule", node.plain())


def _words(translation: Translation) -> None:
    """Use current words for filters, activations and metrics."""
    _respell(translation, "config.observation_filter", {"ConcurrentMeanStdFilter": "MeanStdFilter"}.get)
    for key in ("fcnet_activation", "conv_activation", "post_fcnet_activation"):
        _respell(translation, f"config.model.{key}", lambda word: _ACTIVATIONS.get(word.lower(), word.lower()))
    _respell(translation, "checkpoint_score_attr", _current_score)
    order = translation.take("checkpoint_config.checkpoint_score_order")
    score = translation.find("checkpoint_score_attr")
    if order is None:
        return
    if order.value not in (None, "min", "max"):
        message = f"checkpoint_config.checkpoint_score_order must be min or max, got {shown(order.plain())}"
        translation.problem(order, message)
    elif order.value == "min" and score is not None and isinstance(score.value, str):
        value = f"min-{score.value.removeprefix('min-')}"
        translation.put("checkpoint_score_attr", value, score)
        translation.notice(order, f"checkpoint_config.checkpoint_score_order is checkpoint_score_attr: {value}")


def _respell(translation: Translation, key: str, spelling: Callable[[str], str | None]) -> None:
    node = translation.find(key)
    if node is None or not isinstance(node.value, str):
        return
    word = spelling(node.value)
    if word is not None and word != node.value:
        translation.put(key, word, node)
        translation.notice(node, f"{key}: {node.value} is {word} now")


def _current_score(score: str) -> str:
    order = "min-" if score.startswith("min-") else ""
    return order + current_metric(score.removeprefix("min-"))


def _videos(translation: Translation) -> None:
    translation.compute("config.record_env", "config.monitor", lambda node: bool(node.value))


def _previous_step(translation: Translation) -> None:
    """Read RLlib's key up to 1.1, which was about the action and the reward together."""
    old, table = "config.model.lstm_use_prev_action_reward", key_table(translation.run)
    keys = [f"config.model.lstm_use_prev_{part}" for part in ("action", "reward")]
    if all(tuple(key.split(".")) in table for key in keys):
        node = translation.take(old)
        if node is not None:
            for key in keys:
                translation.put_instead(node, old, key, node.value)


def _whole_sequences(translation: Translation) -> None:
    """Read RLlib's -1 for the length of a sequence as null."""
    node = translation.find("config.replay_sequence_length")
    if node is not None and node.value == -1:
        translation.put("config.replay_sequence_length", None, node)


def _automatic(translation: Translation) -> None:
    """Read ``auto``, RLlib's choice of a number: ``n_step`` for a Q-learner's fragments, else the default.

    Other agents also have ``auto``, as the machine may decide the number of workers.
    """
    node, n_step = translation.find("config.sample_batch_size"), key_table(translation.run).get(("config", "n_step"))
    if node is not None and node.value == AUTO and n_step is not None:
        given = translation.value("config.n_step")
        length = max(int(given if isinstance(given, int) else n_step.default), 1)
        translation.put("config.sample_batch_size", length, node)
        translation.notice(node, f"config.sample_batch_size: auto is {length} here")
    for key in _DEFAULT_IF_AUTO:
        node = translation.find(f"config.{key}")
        if node is not None and node.value == AUTO:
            translation.take(f"config.{key}")
            default = key_table(translation.run)["config", key].default
            translation.notice(node, f"config.{key}: auto is the default of {translation.run} here: {default}")


def _state_preprocessor(translation: Translation) -> None:
    """Read RLlib's network before the layers of policy and critics, which images always have."""
    key = "config.use_state_preprocessor"
    node = translation.take_flag(key) if ("config", "twin_q") in key_table(translation.run) else None
    if node is None:
        return
    if shows_images(translation):
        translation.notice(node, f"{key} has no effect here: the convolutions of config.model see images in any case")
    else:
        translation.put_instead(node, key, _LAYERS, [256, 256])


def _common_rate(translation: Translation) -> None:
    """Read RLlib's null for ``lr``, beside a rate for each of SAC's networks, as the default."""
    node = translation.find("config.lr") if ("config", "optimization") in key_table(translation.run) else None
    if node is not None and node.value is None and node.place.line:
        translation.take("config.lr")


def _frames(translation: Translation) -> None:
    translation.compute("config.model.no_framestack", "config.model.framestack", lambda node: not node.value)
    number = translation.take("config.model.num_framestacks")
    if number is not None and number.value in ("auto", 0, 4):
        translation.put_instead(number, "config.model.num_framestacks", "config.model.framestack", number.value != 0)
    elif number is not None:
        message = f"config.model.num_framestacks: rlexp stacks 4 frames, not {written(number.plain())}"
        translation.problem(number, message, "write 4, auto, or 0 for no stack")


def _shared_layers(translation: Translation) -> None:
    """Give an agent's own ``vf_share_layers`` precedence over the model's."""
    node = translation.take("config.vf_share_layers") if _draws_actions(translation) else None
    if node is None or node.value is None:
        return
    given = translation.find("config.model.vf_share_layers")
    if given is not None and node.place.line and not given.place.line:
        translation.notice(node, "config.vf_share_layers has no effect beside config.model.vf_share_layers")
        return
    translation.put("config.model.vf_share_layers", node, node)
    translation.notice(node, "config.vf_share_layers is config.model.vf_share_layers now")


def _kl_loss(translation: Translation) -> None:
    node = translation.take("config.use_kl_loss") if built_in_base(translation.run) == "PPO" else None
    if node is not None and not isinstance(node.value, bool | None):
        translation.problem(node, f"config.use_kl_loss must be true or false, got {shown(node.plain())}")
    elif node is not None and node.value is False:
        translation.put("config.kl_coeff", 0, node)
        translation.notice(node, "config.use_kl_loss: false is kl_coeff: 0")
    target = translation.find("config.kl_target") if translation.run == "DDPPO" else None
    if target is not None and target.value == 0:
        translation.take("config.kl_target")
        translation.put("config.kl_coeff", 0, target)
        translation.notice(target, "config.kl_target: 0 is kl_coeff: 0")


def _whole_episodes(translation: Translation) -> None:
    """Set whole episodes, which returns need: RLlib's default up to 0.5.3; later it refused anything else."""
    if built_in_base(translation.run) == "PG":
        _episodes_of_pg(translation)
    node = translation.find("config.use_gae") if _draws_actions(translation) else None
    if node is None or node.value is not False:
        return
    if translation.put_unless_given("config.batch_mode", "complete_episodes", node):
        translation.notice(node, "config.use_gae: false needs whole episodes, so batch_mode is complete_episodes")


def _episodes_of_pg(translation: Translation) -> None:
    """Read fragments of RLlib's PG, whose returns ended with them, as whole episodes."""
    node = translation.find("config.batch_mode")
    if node is not None and node.value == "truncate_episodes" and not translation.value("config.use_gae"):
        translation.put("config.batch_mode", "complete_episodes", node)
        text = (
            "config.batch_mode: PG needs the returns of whole episodes, so truncate_episodes is complete_episodes here"
        )
        translation.notice(node, text)


def _entropy_bonus(translation: Translation) -> None:
    """Turn the sign of an entropy coefficient that RLlib up to 0.6.4 added to the loss."""
    if built_in_base(translation.run) not in {"A2C", "A3C", "IMPALA"}:
        return
    node = translation.find("config.entropy_coeff")
    if node is None or not isinstance(node.value, int | float) or isinstance(node.value, bool) or node.value >= 0:
        return
    translation.put("config.entropy_coeff", -node.value, node)
    text = f"config.entropy_coeff: {node.value:g} has the sign of RLlib up to 0.6.4; it is {-node.value:g} now"
    translation.notice(node, text)


def _fragments_of_a3c(translation: Translation) -> None:
    """Read the ``batch_size`` of A3C up to RLlib 0.4, which was the length of a fragment."""
    if built_in_base(translation.run) == "A3C":
        translation.compute("config.batch_size", "config.sample_batch_size", Node.plain)


def _old_fragments(translation: Translation) -> None:
    """Read the share of old fragments in RLlib 2.0 to 2.2 as their number beside each new one."""
    new = "config.replay_proportion"
    node = translation.take("config.replay_ratio") if tuple(new.split(".")) in key_table(translation.run) else None
    if node is None:
        return
    share = node.value
    if isinstance(share, int | float) and 0 <= share < 1:
        translation.put_instead(node, "config.replay_ratio", new, share / (1 - share))
    else:
        translation.problem(node, f"config.replay_ratio must be a number >= 0 and < 1, got {shown(node.plain())}")


def _env(translation: Translation) -> None:
    node = translation.find("env")
    found = current_env(node.value) if node is not None and isinstance(node.value, str) else None
    if node is None or found is None:
        return
    env_id, settings = found
    given = translation.find("config.env_config")
    entries = given.entries() if given else {}
    missing = {key: value for key, value in settings.items() if key not in entries}
    translation.put("env", env_id, node)
    if missing:
        added = node_of(missing, node)
        translation.put("config.env_config", (given or added).with_value({**added.entries(), **entries}), node)
    with_settings = f" with env_config {written_keys(missing)}" if missing else ""
    limit = CUT_AFTER.get(env_id)
    cut = f"; its episodes, endless in RLlib, are cut after {limit} steps" if limit else ""
    translation.notice(node, f"env: {node.value} is {env_id}{with_settings} now{cut}")


_ENDS_AFTER: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("Pendulum-v1", RLLIB_ENVS["TransformedActionPendulum"], "CartPole-v0", BULLET_CART_POLE), 200),
        "CartPole-v1": 500,
    }
)
"""Steps after which envs end their episodes themselves."""


def _soft_horizon(translation: Translation) -> None:
    """Accept episodes that continue after their horizon if the env ends them sooner, as the env is reset then."""
    node = translation.take("config.soft_horizon")
    if node is None or not node.value:
        return
    horizon, limit = translation.value("config.horizon"), _ENDS_AFTER.get(str(translation.value("env")))
    if horizon is None or (limit is not None and isinstance(horizon, int) and horizon >= limit):
        ends = "there is no horizon" if horizon is None else f"the env itself ends its episodes after {limit} steps"
        translation.notice(node, f"config.soft_horizon has no effect here: {ends}")
        return
    message = "config.soft_horizon: rlexp does not support episodes that continue after their horizon"
    translation.problem(node, message, "leave soft_horizon out: the env is reset then; or leave horizon out")


def _callbacks(translation: Translation) -> None:
    """Drop RLlib's default, which does nothing; refuse functions by hooks' names, which are methods here."""
    node = translation.find("config.callbacks")
    if node is None:
        return
    value = node.plain()
    functions = value if isinstance(value, dict) else {}
    if value in _NO_CALLBACKS or (functions and all(function is None for function in functions.values())):
        translation.take("config.callbacks")
    elif any(isinstance(name, str) and name.startswith("on_") for name in functions):
        translation.take("config.callbacks")
        message = "config.callbacks: rlexp does not call functions by the names of hooks, as the first RLlib did"
        translation.problem(node, message, _CALLBACKS_HINT)
    elif isinstance(value, str) and value.startswith("<"):
        translation.take("config.callbacks")
        message = f"config.callbacks: {shown(value)} is a class of RLlib"
        translation.problem(node, message, _CALLBACKS_HINT)


def _first_ars(translation: Translation) -> None:
    """Read the keys of ARS up to RLlib 0.5.3, whose policy was linear unless a file said otherwise."""
    if built_in_base(translation.run) != "ARS":
        return
    old = [translation.take(f"config.{key}") for key in ("num_deltas", "deltas_used", "policy_type", "fcnet_hiddens")]
    given = [node for node in old if node is not None]
    if not given:
        return
    for node, name, new in zip(old, ("num_deltas", "deltas_used"), ("num_rollouts", "rollouts_used"), strict=False):
        if node is not None:
            translation.put_instead(node, f"config.{name}", f"config.{new}", node.value)
    kind, layers = old[2:]
    if kind is not None and kind.value not in ("LinearPolicy", "MLPPolicy"):
        message = f"config.policy_type must be LinearPolicy or MLPPolicy, got {shown(kind.plain())}"
        translation.problem(kind, message)
    elif kind is None or kind.value == "LinearPolicy":
        why = "a linear policy, as ARS had up to RLlib 0.5.3, whose keys this file has"
        if translation.put_unless_given(_LAYERS, [], given[0]):
            translation.notice(given[0], f"{_LAYERS} is [] here: {why}")
    else:
        given_by = "config.policy_type: MLPPolicy" if layers is None else "config.fcnet_hiddens"
        translation.put_instead(layers or kind, given_by, _LAYERS, layers.plain() if layers else [32, 32])


def _draws_actions(translation: Translation) -> bool:
    """Return whether the agent draws actions from a policy, as PPO does."""
    return ("config", "use_gae") in key_table(translation.run)


_STEPS: tuple[Callable[[Translation], None], ...] = (
    _literals,
    sizes_for_each,
    learner_gpu,
    worker_resources,
    trial_resources,
    learning_workers,
    learner_per_gpu,
    exploration_type,
    noise_schedule,
    epsilon,
    _schedules,
    replay_buffer_type,
    optimizer_class,
    policies,
    _words,
    _videos,
    _previous_step,
    _whole_sequences,
    _automatic,
    _state_preprocessor,
    _common_rate,
    custom_model,
    _frames,
    _shared_layers,
    _kl_loss,
    _whole_episodes,
    _entropy_bonus,
    _fragments_of_a3c,
    _first_ars,
    _old_fragments,
    _callbacks,
    _env,
    _soft_horizon,
)
