"""What commands print, apart from the displays of a run: results to stdout, everything else to stderr."""

from rlexp.terminal.condition import print_condition
from rlexp.terminal.evaluations import EvaluationProgress, print_evaluation
from rlexp.terminal.explanations import print_explanation
from rlexp.terminal.lines import print_error
from rlexp.terminal.plans import plan_as_json, print_checked, print_notices, print_plan

__all__ = [
    "EvaluationProgress",
    "plan_as_json",
    "print_checked",
    "print_condition",
    "print_error",
    "print_evaluation",
    "print_explanation",
    "print_notices",
    "print_plan",
]
