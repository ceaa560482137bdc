"""Keys of RLlib about learners: how many there are, their GPUs, and sizes that count for each of them."""

from __future__ import annotations

from rlexp.config.keys.key_table import key_table
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, shown, written

_NUMBER = "config.num_learners"
_KEEP_ONE = "keep one of them"

_FOR_EACH = {
    "train_batch_size_per_learner": "train_batch_size",
    "minibatch_size": "sgd_minibatch_size",
    "num_gpus_per_learner": "num_gpus",
    "num_gpus_per_learner_worker": "num_gpus",
}
"""Keys that count for one learner, and those of all learners together."""


def sizes_for_each(translation: Translation) -> None:
    """Multiply batch sizes and GPUs of one learner by the number of learners: ours are of all together."""
    table = key_table(translation.run)
    _driver_as_learner(translation)
    learners = translation.value(_NUMBER)
    for old, new in _FOR_EACH.items():
        node = translation.find(f"config.{old}")
        if node is None or ("config", new) not in table:
            continue
        if isinstance(learners, int) and learners > 1 and isinstance(node.value, int | float):
            translation.take(f"config.{old}")
            each = f"config.{old}: {written(node.value)} for each of {learners} learners"
            _use_whole(translation, node, each, f"config.{new}", node.value * learners)
        else:
            translation.move(("config", old), ("config", new))


def _use_whole(translation: Translation, node: Node, each: str, key: str, whole: float) -> None:
    """Set a key to what all learners have together, unless the command line sets it; refuse a second, other value."""
    given, message = translation.find(key), f"{each} is {key}: {written(whole)}"
    if given is None or given.value is None or not node.place.line:
        translation.put(key, whole, node)
    elif not given.place.line:
        return
    elif given.value != whole:
        translation.problem(node, f"{message}, but this is {shown(given.plain())} at {given.key_place}", _KEEP_ONE)
        return
    translation.notice(node, f"{message} now")


def _driver_as_learner(translation: Translation) -> None:
    """Read RLlib's 0 learners, where the driver learns: it is one learner here."""
    node = translation.find(_NUMBER)
    if node is not None and node.value == 0 and not isinstance(node.value, bool):
        translation.put(_NUMBER, 1, node)
        translation.notice(node, f"{_NUMBER}: 0 is 1 here: a single learner is in the process of the driver")


def learner_per_gpu(translation: Translation) -> None:
    """Give each GPU a learner where a file does not say how many there are: RLlib split minibatches among GPUs."""
    gpus = translation.find("config.num_gpus")
    if gpus is None or tuple(_NUMBER.split(".")) not in key_table(translation.run):
        return
    if isinstance(gpus.value, int | float) and gpus.value > 1 and float(gpus.value).is_integer():
        number = int(gpus.value)
        if translation.put_unless_given(_NUMBER, number, gpus):
            message = f"{_NUMBER} is {number} as well: each GPU has a learner, and they share each minibatch"
            translation.notice(gpus, f"config.num_gpus is {number}, so {message}")


def learner_gpu(translation: Translation) -> None:
    """``gpu``, ``gpu_fraction`` and ``devices`` stand for ``num_gpus``; with ``_fake_gpus`` there is none."""
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
    devices = translation.take("config.devices")
    if devices is not None:
        listed = devices.plain() if isinstance(devices.value, tuple) else [devices.value]
        translation.put_instead(
            devices, "config.devices", "config.num_gpus", sum("gpu" in str(device) for device in listed)
        )
    _fake_gpus(translation)


def _fake_gpus(translation: Translation) -> None:
    """``_fake_gpus`` simulated the GPUs of ``num_gpus`` on CPUs: the learner uses the CPU, and reserves no GPU."""
    fake = translation.take("config._fake_gpus")
    if fake is None or not fake.value:
        return
    gpus = translation.take("config.num_gpus")
    left_out = f", and num_gpus: {written(gpus.plain())} is left out" if gpus is not None else ""
    translation.notice(fake, f"config._fake_gpus: the learner uses the CPU{left_out}")
