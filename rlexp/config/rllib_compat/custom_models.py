"""RLlib's ``custom_model``, a name that code had registered, and its arguments, in today's form."""

from __future__ import annotations

from typing import Final

from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, shown_key, written

_KEY: Final = "config.model.custom_model"
_ARGUMENTS: Final = ("config.model.custom_model_config", "config.model.custom_options")
_NOT_REGISTERED: Final = (
    "write package.module:Class: a torch.nn.Module that has num_features, and maps observations to features"
)


def custom_model(translation: Translation) -> None:
    """Give a class its arguments from beside it; refuse a name of RLlib's ModelCatalog, which no file defines."""
    node = translation.find(_KEY)
    if node is not None and isinstance(node.value, str) and node.value and ":" not in node.value:
        translation.take(_KEY)
        message = f"{_KEY}: {shown_key(node.value)} is a name that a program registered in RLlib, not a class"
        translation.problem(node, message, _NOT_REGISTERED)
    elif node is not None and not node.value:
        translation.take(_KEY)
    for key in _ARGUMENTS:
        given = translation.take(key)
        if given is not None and given.value:
            _give(translation, key, given)


def _give(translation: Translation, key: str, arguments: Node) -> None:
    """Write the ``arguments`` that ``key`` has below the class that they are for."""
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
