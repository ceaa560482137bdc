"""Groups of RLlib that stand for flat keys: replay, the optimizer, resources, learners, and a custom model.

Each function is a step of ``values.use_current_values``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rlexp.config.keys.fields import leaves_of_data
from rlexp.config.keys.key_table import key_table
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, shown, shown_key, written

_NO_VALUES: Final = (None, "None", False, "")
TRIAL_RESOURCES: Final = ("resources_per_trial", "trial_resources", "resources")
"""The keys beside ``config`` that told Tune what a trial reserves."""

_RESOURCES: Final = frozenset(
    f"{form}{unit}{limit}"
    for unit in ("cpu", "gpu")
    for form, limit in (("", ""), ("extra_", ""), ("driver_", ""), ("driver_", "_limit"))
)
"""The resources of a trial that are shared out."""

_BUFFERS = {
    "MultiAgentPrioritizedReplayBuffer": True,
    "PrioritizedReplayBuffer": True,
    "PrioritizedEpisodeReplayBuffer": True,
    "MultiAgentPrioritizedEpisodeReplayBuffer": True,
    "MultiAgentReplayBuffer": False,
    "ReplayBuffer": False,
    "EpisodeReplayBuffer": False,
    "MultiAgentEpisodeReplayBuffer": False,
}
_RECOMMENDED = ("MultiAgentPrioritizedReplayBuffer", "MultiAgentReplayBuffer")
_WITH_FLAG = ("LocalReplayBuffer",)
"""Classes that were uniform or prioritized, depending on ``prioritized_replay``."""
_FLAG_DECIDES = "prioritized_replay decides how replay samples"

_OPTIMIZERS = {
    "AsyncReplayOptimizer": "APEX",
    "AsyncSamplesOptimizer": "APEX",
    "ApexOptimizer": "APEX",
    "SyncReplayOptimizer": "DQN",
    "LocalSyncReplayOptimizer": "DQN",
}
"""The agent whose optimizer was of that class; other agents with replay had the same ones."""


def replay_buffer_type(translation: Translation) -> None:
    """Read ``replay_buffer_config.type`` as ``prioritized_replay``."""
    node = translation.take("config.replay_buffer_config.type")
    if node is None:
        return
    kind = str(node.value).rpartition(".")[2]
    if kind in _WITH_FLAG:
        translation.notice(node, f"config.replay_buffer_config.type has no effect here: with {kind}, {_FLAG_DECIDES}")
        return
    if kind not in _BUFFERS:
        message = f"config.replay_buffer_config.type: rlexp does not support {written(node.plain())}"
        translation.problem(node, message, f"use {' or '.join(_RECOMMENDED)}")
        return
    translation.put_instead(
        node, f"config.replay_buffer_config.type: {kind}", "config.prioritized_replay", _BUFFERS[kind]
    )


def optimizer_class(translation: Translation) -> None:
    """``optimizer_class`` must be the agent's own."""
    node = translation.take("config.optimizer_class")
    if node is None:
        return
    agent = _OPTIMIZERS.get(str(node.value))
    if agent is None:
        translation.problem(node, f"config.optimizer_class: rlexp does not support {written(node.plain())}")
    elif agent != _like(translation.run):
        message = f"config.optimizer_class: {node.value} is the optimizer of {agent}, but run is {translation.run}"
        translation.problem(node, message, f"write run: {agent}, or leave optimizer_class out")
    else:
        translation.notice(node, f"config.optimizer_class has no effect here: {translation.run} has only this one")


def _like(run: str) -> str | None:
    """Return APEX or DQN if the agent has the same optimizer; None without replay."""
    table = key_table(run)
    if ("config", "optimizer", "num_replay_buffer_shards") in table:
        return "APEX"
    return "DQN" if ("config", "buffer_size") in table else None


def worker_resources(translation: Translation) -> None:
    """Read ``worker_resources`` and ``use_gpu_for_workers`` as CPUs and GPUs per worker."""
    resources = translation.take("config.worker_resources")
    if resources is not None and resources.value is not None and not isinstance(resources.value, Mapping):
        message = f"config.worker_resources must be a mapping of numbers, got {shown(resources.plain())}"
        translation.problem(resources, message, "write worker_resources: {num_cpus: 1}")
    for name, amount in (resources.entries() if resources else {}).items():
        translation.put_instead(amount, f"config.worker_resources.{name}", f"config.{name}_per_worker", amount.plain())
    translation.compute("config.use_gpu_for_workers", "config.num_gpus_per_worker", lambda node: int(bool(node.value)))


def trial_resources(translation: Translation) -> None:
    """Give the CPUs and GPUs of a trial to its driver and, in equal shares, to its workers."""
    for name in TRIAL_RESOURCES:
        node = translation.take(name)
        if node is None or node.value is None:
            continue
        asked = {key: child.plain() for key, child in node.entries().items() if child.value is not None}
        if not node.entries() or not all(isinstance(amount, int | float) for amount in asked.values()):
            message = f"{name} must be a mapping of numbers: cpu, gpu, extra_cpu, extra_gpu"
            translation.problem(node, message, f"write {name}: {{cpu: 1, extra_cpu: 4}}, or leave it out")
            continue
        if unknown := [key for key in asked if key not in _RESOURCES]:
            message = f"{name}: rlexp does not support {shown_key(unknown[0])}"
            translation.problem(node.entries()[unknown[0]], message, "use cpu, gpu, extra_cpu and extra_gpu")
            continue
        for unit in ("cpu", "gpu"):
            _share_out(translation, node, name, unit, asked)


def _share_out(translation: Translation, node: Node, name: str, unit: str, asked: Mapping[str, Any]) -> None:
    total, limit = asked.get(unit), asked.get(f"driver_{unit}_limit", asked.get(f"driver_{unit}"))
    extra = asked.get(f"extra_{unit}", 0) if limit is None else (total or 0) - limit
    driver = "num_cpus_for_driver" if unit == "cpu" else "num_gpus"
    if total is not None:
        translation.put_instead(node, f"{name}.{unit}", f"config.{driver}", total if limit is None else limit)
    workers = translation.value("config.num_workers")
    workers = workers if isinstance(workers, int) else key_table(translation.run)["config", "num_workers"].default
    if extra and workers:
        translation.put_instead(node, f"{name}.extra_{unit}", f"config.num_{unit}s_per_worker", extra / workers)


_NUMBER, _OLD_NUMBER = "config.num_learners", "config.num_learner_workers"
_KEEP_ONE = "keep one of them"
_GPUS = "config.num_gpus"

_FOR_EACH = {
    "train_batch_size_per_learner": "train_batch_size",
    "minibatch_size": "sgd_minibatch_size",
    "num_gpus_per_learner": "num_gpus",
    "num_gpus_per_learner_worker": "num_gpus",
}
"""Keys per learner, and the keys for all learners together."""


def sizes_for_each(translation: Translation) -> None:
    """Multiply batch sizes and GPUs of one learner by the number of learners, as ours count all together."""
    table = key_table(translation.run)
    several = tuple(_NUMBER.split(".")) in table
    learners = _number_of_learners(translation) if several else _learners_as_one(translation)
    for old, new in _FOR_EACH.items():
        node, key = translation.find(f"config.{old}"), f"config.{new}"
        if node is None or ("config", new) not in table:
            continue
        number = learners if several or key != _GPUS else 1
        if isinstance(node.value, int | float) and (number > 1 or key == _GPUS):
            translation.take(f"config.{old}")
            each = f" for each of {number} learners" if number > 1 else ""
            _use_whole(translation, node, f"config.{old}: {written(node.value)}{each}", key, node.value * number)
        else:
            translation.move(("config", old), ("config", new))


def _use_whole(translation: Translation, node: Node, each: str, key: str, whole: float) -> None:
    """Set a key to the amount of all learners, unless the command line sets it; refuse a second, other value."""
    given, message = translation.find(key), f"{each} is {key}: {written(whole)}"
    if given is not None and key == _GPUS and given.place.line and given.value != whole:
        translation.notice(given, f"{key} has no effect beside the GPUs of each learner, as in RLlib")
        given = None
    if given is None or given.value is None or not node.place.line:
        translation.put(key, whole, node)
    elif not given.place.line:
        return
    elif given.value != whole:
        translation.problem(node, f"{message}, but this is {shown(given.plain())} at {given.key_place}", _KEEP_ONE)
        return
    translation.notice(node, f"{message} now")


def _number_of_learners(translation: Translation) -> int:
    """Return the number of learners of an agent that can have several; RLlib's 0, where the driver learns, is 1."""
    if translation.find(_OLD_NUMBER) is not None:
        translation.move(tuple(_OLD_NUMBER.split(".")), tuple(_NUMBER.split(".")))
    node = translation.find(_NUMBER)
    if node is not None and node.value == 0 and not isinstance(node.value, bool):
        translation.put(_NUMBER, 1, node)
        translation.notice(node, f"{_NUMBER}: 0 is 1 here: a single learner is in the process of the driver")
    number = translation.value(_NUMBER)
    return number if isinstance(number, int) else 1


def _learners_as_one(translation: Translation) -> int:
    """Return the number of learners that a file gives to an agent with one, which has the gradient of all of them."""
    number = 1
    for key in (_NUMBER, _OLD_NUMBER):
        node = translation.take(key)
        if node is None:
            continue
        given = node.plain() or 0
        if not isinstance(given, int) or given < 0:
            translation.problem(node, f"{key} must be a whole number >= 0, got {shown(given)}")
        elif given > 1:
            number = given
            each = f"one learner takes the gradient of a whole batch, of which {number} would take a part each"
            translation.notice(node, f"{key} has no effect here: {each}")
        else:
            translation.notice(node, f"{key} is left out: {translation.run} has one learner", is_minor=True)
    return number


def learning_workers(translation: Translation) -> None:
    """Read what DDPPO's workers had as they were the learners: GPUs, and a train batch as long as a fragment."""
    if translation.run != "DDPPO":
        return
    gpus, workers = translation.find("config.num_gpus_per_worker"), _given_or_default(translation, "num_workers")
    if gpus is not None and isinstance(gpus.value, int | float) and gpus.value > 0 and isinstance(workers, int):
        translation.take("config.num_gpus_per_worker")
        translation.put_unless_given(_NUMBER, max(workers, 1), gpus)
        each = f"config.num_gpus_per_worker: {written(gpus.value)} for each of {workers} workers, which learned,"
        _use_whole(translation, gpus, each, _GPUS, gpus.value * max(workers, 1))
    _train_batch_of_a_fragment(translation)


def _train_batch_of_a_fragment(translation: Translation) -> None:
    """Read a ``train_batch_size`` of -1, or none beside the size of a fragment, as one fragment of each env."""
    keys = ("sample_batch_size", "num_envs_per_worker")
    size, named = translation.find("config.train_batch_size"), [translation.find(f"config.{key}") for key in keys]
    at = next((node for node in named if node is not None), None) if size is None else size
    sizes = [_given_or_default(translation, key) for key in keys]
    if at is None or (size is not None and size.value != -1) or not all(isinstance(each, int) for each in sizes):
        return
    steps = sizes[0] * sizes[1]
    translation.put("config.train_batch_size", steps, at)
    text = "one fragment of each env of a worker"
    translation.notice(at, f"config.train_batch_size is {steps} here: {text}")


def _given_or_default(translation: Translation, key: str) -> Any:
    found = translation.value(f"config.{key}")
    return key_table(translation.run)["config", key].default if found is None else found


def learner_per_gpu(translation: Translation) -> None:
    """Give each GPU a learner if a file does not set their number, as RLlib split minibatches among GPUs."""
    gpus = translation.find("config.num_gpus")
    if gpus is None or tuple(_NUMBER.split(".")) not in key_table(translation.run):
        return
    if isinstance(gpus.value, int | float) and gpus.value > 1 and float(gpus.value).is_integer():
        number = int(gpus.value)
        if translation.put_unless_given(_NUMBER, number, gpus):
            message = f"{_NUMBER} is {number} as well: each GPU has a learner, and they share each update"
            translation.notice(gpus, f"config.num_gpus is {number}, so {message}")


def learner_gpu(translation: Translation) -> None:
    """Read ``gpu``, ``gpu_fraction`` and ``devices`` as ``num_gpus``; with ``_fake_gpus`` there is none."""
    fraction = translation.take("config.gpu_fraction")
    gpu = translation.take("config.gpu")
    if gpu is not None and isinstance(gpu.value, bool):
        translation.put_instead(
            gpu, "config.gpu", "config.num_gpus", (fraction.value if fraction else 1) if gpu.value else 0
        )
    elif gpu is not None:
        translation.problem(gpu, f"config.gpu must be true or false, got {shown(gpu.plain())}")
    elif fraction is not None:
        translation.notice(fraction, "config.gpu_fraction has no effect without gpu: true")
    translation.compute("config.devices", "config.num_gpus", _gpus_among)
    _fake_gpus(translation)


def _gpus_among(devices: Node) -> int:
    listed = devices.plain() if isinstance(devices.value, tuple) else [devices.value]
    return sum("gpu" in str(device) for device in listed)


def _fake_gpus(translation: Translation) -> None:
    """Read ``_fake_gpus``, which simulated ``num_gpus`` on CPUs: the learner uses the CPU and reserves no GPU."""
    for key in ("config._fake_gpus", "config._fake_accs"):
        fake = translation.take(key)
        if fake is None or not fake.value:
            continue
        gpus = translation.take(_GPUS)
        left_out = f", and num_gpus: {written(gpus.plain())} is left out" if gpus is not None else ""
        translation.notice(fake, f"{key}: the learner uses the CPU{left_out}")


_KEY: Final = "config.model.custom_model"
_ARGUMENTS: Final = ("config.model.custom_model_config", "config.model.custom_options")
_NOT_REGISTERED: Final = (
    "--map {}=package.module:Class names one: a torch.nn.Module that has num_features, and maps observations to them"
)


def custom_model(translation: Translation) -> None:
    """Give a class the arguments beside it; refuse a name of RLlib's ModelCatalog, which no file defines."""
    node = translation.find(_KEY)
    if node is not None and isinstance(node.value, str) and node.value and ":" not in node.value:
        translation.take(_KEY)
        message = f"{_KEY}: {shown_key(node.value)} is a name that a program registered in RLlib, not a class"
        translation.problem(node, message, _NOT_REGISTERED.format(shown_key(node.value)))
    elif node is not None and not node.value:
        translation.take(_KEY)
    for key in _ARGUMENTS:
        given = translation.take(key)
        if given is not None and given.value:
            _give(translation, key, given)


def _give(translation: Translation, key: str, arguments: Node) -> None:
    """Move the ``arguments`` of ``key`` below their class."""
    node = translation.find(_KEY)
    if node is None:
        translation.notice(arguments, f"{key} has no effect here: there is no {_KEY}")
    elif not isinstance(node.value, str):
        message = f"{_KEY} already has arguments, so {key} cannot give others"
        translation.problem(arguments, message, f"leave {key} out")
    elif not arguments.entries():
        translation.problem(arguments, f"{key} must be a mapping, got {written(arguments.plain())}")
    else:
        translation.put(_KEY, node.with_value({node.value: arguments}), node)
        translation.notice(arguments, f"{key} is below {_KEY}: {node.value} now")


_POLICIES: Final = ("policies", "policy_graphs")


def policies(translation: Translation) -> None:
    """Take RLlib's keys of policies if they mean one, which all agents learn; several are refused by their names."""
    for group in ("config.multiagent", "config"):
        for key in _POLICIES:
            node = translation.take(f"{group}.{key}")
            if node is not None:
                _take_policies(translation, node, f"{group}.{key}")
        mapping = translation.take(f"{group}.policy_mapping_fn")
        if mapping is not None and mapping.value not in _NO_VALUES:
            what = f"{group}.policy_mapping_fn has no effect here, and is not evaluated"
            translation.notice(mapping, f"{what}: all agents learn one policy")
        trained = translation.take(f"{group}.policies_to_train")
        if trained is not None:
            translation.notice(trained, f"{group}.policies_to_train is left out: there is one policy", is_minor=True)


def _take_policies(translation: Translation, node: Node, key: str) -> None:
    given = node.plain()
    number = given if isinstance(given, int) else len(given) if isinstance(given, Mapping | list | tuple) else None
    if given in _NO_VALUES or number == 0:
        return
    if number is None:
        translation.problem(node, f"{key} is {written(given)}, not the names of policies", "leave it out")
    elif number > 1:
        names = "" if isinstance(given, int) else f" ({', '.join(map(str, given))})"
        translation.problem(
            node,
            f"{key}: rlexp trains one policy for all agents of an env, not {number}{names}",
            "leave them out, and policy_mapping_fn: then all agents learn one policy, with equal spaces",
        )
    elif (
        isinstance(given, Mapping)
        and (own := next(iter(given.values())))
        and any(leaf not in _NO_VALUES for leaf in leaves_of_data(own))
    ):
        name = next(iter(given))
        message = f"{key}: {name} has settings of its own, {written(own)}"
        translation.problem(node, message, f"write {name}: null here, and keys of the policy in config")
    else:
        translation.notice(node, f"{key} is left out: all agents learn one policy", is_minor=True)
