"""CPUs and GPUs in RLlib's spelling: ``gpu: true``, lists of devices, resources of a whole trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.key_table import key_table
from rlexp.config.rllib_compat.replaced_keys import becomes
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, shown, written


def learner_gpu(translation: Translation) -> None:
    """``gpu``, ``gpu_fraction`` and ``devices`` stand for ``num_gpus``; with ``_fake_gpus`` there is none."""
    fraction = translation.take("config.gpu_fraction")
    gpu = translation.take("config.gpu")
    if gpu is not None and isinstance(gpu.value, bool):
        becomes(translation, gpu, "gpu", "num_gpus", (fraction.value if fraction else 1) if gpu.value else 0)
    elif gpu is not None:
        translation.problem(gpu, f"config.gpu must be true or false, got {shown(gpu.plain())}")
    elif fraction is not None:
        translation.notice(fraction, "config.gpu_fraction has no effect without gpu: true")
    devices = translation.take("config.devices")
    if devices is not None:
        listed = devices.plain() if isinstance(devices.value, tuple) else [devices.value]
        becomes(translation, devices, "devices", "num_gpus", sum("gpu" in str(device) for device in listed))
    _fake_gpus(translation)


def _fake_gpus(translation: Translation) -> None:
    """``_fake_gpus`` simulated the GPUs of ``num_gpus`` on CPUs: the learner uses the CPU, and reserves no GPU."""
    fake = translation.take("config._fake_gpus")
    if fake is None or not fake.value:
        return
    gpus = translation.take("config.num_gpus")
    left_out = f", and num_gpus: {written(gpus.plain())} is left out" if gpus is not None else ""
    translation.notice(fake, f"config._fake_gpus: the learner uses the CPU{left_out}")


def worker_resources(translation: Translation) -> None:
    """``worker_resources`` and ``use_gpu_for_workers`` stand for CPUs and GPUs per worker."""
    resources = translation.take("config.worker_resources")
    for name, amount in (resources.entries() if resources else {}).items():
        becomes(translation, amount, f"worker_resources.{name}", f"{name}_per_worker", amount.plain())
    use_gpu = translation.take("config.use_gpu_for_workers")
    if use_gpu is not None:
        becomes(translation, use_gpu, "use_gpu_for_workers", "num_gpus_per_worker", int(bool(use_gpu.value)))


def trial_resources(translation: Translation) -> None:
    """Give the CPUs and GPUs of a trial to its driver and, in equal shares, to its workers."""
    for name in ("resources_per_trial", "trial_resources", "resources"):
        node = translation.take(name)
        if node is None or node.value is None:
            continue
        asked = {key: child.plain() for key, child in node.entries().items() if child.value is not None}
        if not node.entries() or not all(isinstance(amount, int | float) for amount in asked.values()):
            message = f"{name} must be a mapping of numbers: cpu, gpu, extra_cpu, extra_gpu"
            translation.problem(node, message, f"write {name}: {{cpu: 1, extra_cpu: 4}}, or leave it out")
            continue
        for unit in ("cpu", "gpu"):
            _share_out(translation, node, name, unit, asked)


def _share_out(translation: Translation, node: Node, name: str, unit: str, asked: Mapping[str, Any]) -> None:
    total, limit = asked.get(unit), asked.get(f"driver_{unit}_limit")
    extra = asked.get(f"extra_{unit}", 0) if limit is None else (total or 0) - limit
    driver = "num_cpus_for_driver" if unit == "cpu" else "num_gpus"
    if total is not None:
        becomes(translation, node, f"{name}.{unit}", driver, total if limit is None else limit, prefix="")
    workers = translation.value("config.num_workers")
    workers = workers if isinstance(workers, int) else key_table(translation.run)["config", "num_workers"].default
    if extra and workers:
        becomes(translation, node, f"{name}.extra_{unit}", f"num_{unit}s_per_worker", extra / workers, prefix="")
