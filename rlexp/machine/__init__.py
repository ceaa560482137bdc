"""What this machine offers, whether trials fit it, and how to make them fit."""

from rlexp.machine.fit import check_fits, fitted
from rlexp.machine.hardware import Machine, available_cpus, available_gpus, this_machine
from rlexp.machine.requirements import check_requirements

__all__ = ["Machine", "available_cpus", "available_gpus", "check_fits", "check_requirements", "fitted", "this_machine"]
