"""``evaluation_config`` as RLlib has it: any key of ``config``, for the evaluation alone."""

from __future__ import annotations

from dataclasses import replace

from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.rllib_compat.absent_keys import leave_out
from rlexp.config.rllib_compat.replaced_keys import becomes
from rlexp.config.rllib_compat.table import Absent, absent_keys, computed_keys, old_groups, renamed_keys
from rlexp.config.translation import Translation

_GROUP: KeyName = ("config", "evaluation_config")
_DOTTED = ".".join(_GROUP)
_FROM_TRAINING = "an evaluation uses the value of the training"
_VIDEOS = ("record_env", "monitor")


def use_evaluation_keys(translation: Translation) -> None:
    """Bring the keys of the group into today's form; those that no evaluation of ours can have are dropped, or refused.

    Refused is what is refused for the training, and another env.
    """
    group = translation.experiment.find(_GROUP)
    if group is None or not group.entries():
        return
    given = translation.nodes()
    for absent in absent_keys(translation.run):
        path = (*_GROUP, *absent.path[1:])
        if absent.path[0] == _GROUP[0] and absent.path[1:2] != _GROUP[1:] and path in given:
            leave_out(translation, replace(absent, path=path))
    for name in _VIDEOS:
        node = translation.take(f"{_DOTTED}.{name}")
        if node is not None and node.value:
            becomes(translation, node, f"evaluation_config.{name}", "monitor", True)
    _refuse_other_env(translation)
    for name in _names_of_training(translation):
        leave_out(translation, Absent((*_GROUP, name), _FROM_TRAINING, (), is_feature=False))


def _refuse_other_env(translation: Translation) -> None:
    node = translation.take(f"{_DOTTED}.env")
    if node is not None and node.value is not None and node.value != translation.value("env"):
        translation.problem(node, f"{_DOTTED}.env: rlexp does not support evaluation in another environment")


def _names_of_training(translation: Translation) -> list[str]:
    """Return the names in the group that are keys of ``config``, of any age, and not the group's own."""
    run, group = translation.run, translation.experiment.find(_GROUP)
    known = {*key_table(run), *renamed_keys(run), *computed_keys(), *old_groups()}
    names = group.entries() if group else ()
    return [name for name in names if (*_GROUP, name) not in known and (_GROUP[0], name) in known]
