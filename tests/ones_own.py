"""Code and storages that who runs a test has trained with, where the test makes a run or checkpoint in another way."""

from rlexp.config.keys.experiment import Experiment
from rlexp.user_code.finding import module_file
from rlexp.user_code.memory import Remembered, remember


def trained_with(*names: str, storage: str | None = None) -> None:
    """Remember modules and classes (``module:Class``), and a storage."""
    found = ((name, module_file(name.partition(":")[0], ())) for name in names)
    notice = remember([Remembered(name, file) for name, file in found if file], [] if storage is None else [storage])
    assert notice is None


def trained(experiment: Experiment) -> None:
    """Remember what an experiment names."""
    trained_with(experiment.env, *(part.name for part in experiment.config.user_parts()))
