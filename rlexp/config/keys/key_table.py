"""Every key of every agent, read from the models: its path, what it expects, its default and its meaning."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from rlexp.config.keys.agents import AGENTS, experiment_class
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.fields import RLEXP_ONLY, UNSAID_LIMITS, Expects, KeyGroup
from rlexp.config.keys.user_code import UserClass

KeyName = tuple[str, ...]
"""A key's place in an experiment: ``("config", "model", "fcnet_hiddens")``."""

_WORDS: Mapping[Any, str] = MappingProxyType(
    {bool: "true or false", int: "a whole number", float: "a number", str: "a string", NoneType: "null"}
    | {UserClass: UserClass.EXPECTED}
)
MAPPING = "a mapping"
"""What a key expects that has other keys below it: its own, or the user's."""
_NOT_WRITTEN = frozenset({"name"})
_LOCALS = "<locals>"
"""The part after a function in the qualified name of a class inside it."""


@dataclass(frozen=True)
class Key:
    """One key of an agent's experiments."""

    path: KeyName
    expects: str
    """The expectation in words, with the range: ``a whole number >= 1 or null``."""
    items_expect: str
    """The expectation of each value in a list or a mapping; empty if there are none, or free ones."""
    default: Any
    """The default; None also if the key has no default (see ``required``)."""
    required: bool
    group: type[KeyGroup]
    """The class that it is a field of."""
    field: str
    """The name of the field: the key's own, unless that is a Python keyword."""
    is_group: bool
    """Whether it has other keys below it: ``config``, ``config.model``."""
    is_rlexp_only: bool
    """Whether no release of RLlib has it."""

    @property
    def meaning(self) -> str:
        """The docstring of the key, from the class nearest to ``group`` that gives one."""
        texts = (_own_meaning(ancestor, self.field) for ancestor in self.group.__mro__ if _is_group(ancestor))
        return next(filter(None, texts), "")

    @property
    def name(self) -> str:
        """The key without its groups."""
        return self.path[-1]

    @property
    def takes_strings(self) -> bool:
        """Whether a value may be a string."""
        return "a string" in self.expects or "one of" in self.expects

    @property
    def takes_null(self) -> bool:
        """Whether a value may be null."""
        return "null" in self.expects


def key_path(dotted: str) -> KeyName:
    """Return the path of a dotted key."""
    return tuple(dotted.split("."))


@cache
def key_table(run: str) -> Mapping[KeyName, Key]:
    """Return the keys of the agent ``run`` by path, with the experiment's own, in the models' order."""
    return MappingProxyType({key.path: key for key in _keys(experiment_class(run), ())})


@cache
def flat_keys_of_optimizer(run: str) -> frozenset[str]:
    """Return the keys below ``config.optimizer``, which may also be flat."""
    return frozenset(key.name for key in key_table(run).values() if key.path[:-1] == ("config", "optimizer"))


@cache
def nested_keys_of_config(run: str) -> frozenset[str]:
    """Return the flat keys of ``config`` that may also be below ``optimizer``."""
    config = experiment_class(run).model_fields["config"].annotation
    assert isinstance(config, type)
    assert issubclass(config, CommonConfig)
    return frozenset(config.SHARED_WITH_OPTIMIZER)


@cache
def rlexp_only_keys() -> frozenset[KeyName]:
    """Return the keys of all agents that no release of RLlib has; in ``config``, without the keys of ``optimizer``."""
    marked = {path for run in AGENTS for path, key in key_table(run).items() if key.is_rlexp_only}
    return frozenset(marked | {("config", name) for run in AGENTS for name in flat_keys_of_optimizer(run)})


@cache  # agents share most groups
def _keys(group: type[KeyGroup], parent: KeyName) -> tuple[Key, ...]:
    keys: list[Key] = []
    for name, field in group.model_fields.items():
        if name in _NOT_WRITTEN:
            continue
        below = field.annotation if _is_group(field.annotation) else None
        written = field.alias or name
        key = Key(
            path=(*parent, written),
            expects=expectation(field.annotation, field.metadata),
            items_expect=_expectation_of_items(field.annotation),
            default=_default(field),
            required=field.is_required(),
            group=group,
            field=name,
            is_group=below is not None,
            is_rlexp_only=RLEXP_ONLY in field.metadata,
        )
        keys += (key, *(() if below is None else _keys(below, key.path)))
    return tuple(keys)


def _default(field: FieldInfo) -> Any:
    """Return a field's default; None if it has none. A group is not copied, as none can be changed."""
    if field.is_required():
        return None
    return field.default if isinstance(field.default, KeyGroup) else field.get_default(call_default_factory=True)


def _is_group(annotation: Any) -> TypeGuard[type[KeyGroup]]:
    return isinstance(annotation, type) and issubclass(annotation, KeyGroup)


def _own_meaning(group: type[KeyGroup], name: str) -> str | None:
    """Return what a class itself says of a key; a package's agent may say it as the field's description."""
    field = group.model_fields.get(name)
    if field is not None and field.description:
        return field.description
    # Reading source takes longer than all else, so only classes that give the key are read.
    return _docstrings(group).get(name) if name in inspect.get_annotations(group) else None


@cache
def _docstrings(group: type[KeyGroup]) -> Mapping[str, str]:
    """Return the docstrings of the keys that a class itself gives, by name; none if it has no source.

    Pydantic would read the source of every class when it is imported, which few commands need.
    """
    source = next(_classes_named(group.__qualname__.split("."), _parsed(group.__module__)), None)
    return {
        key.target.id: inspect.cleandoc(text.value.value)
        for key, text in pairwise(source.body if source else ())
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def _parsed(module: str) -> ast.Module:
    """Return the parsed source of an imported module; an empty one if it has none."""
    try:
        return ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):  # the third: a module that is not a file
        return ast.Module([], [])


def _classes_named(names: Sequence[str], scope: ast.AST) -> Iterator[ast.ClassDef]:
    """Yield the classes below ``scope`` with the parts of a qualified name, such as ``function.<locals>.Class``."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes_named(names, node)
            continue
        parts = [node.name] if isinstance(node, ast.ClassDef) else [node.name, _LOCALS]
        if isinstance(node, ast.ClassDef) and list(names) == parts:
            yield node
        elif list(names[: len(parts)]) == parts:
            yield from _classes_named(names[len(parts) :], node)


def expectation(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return in words what the annotated type accepts: ``a number > 0 or null``."""
    metadata = tuple(metadata)
    words = next((item.words for item in metadata if isinstance(item, Expects)), None)
    if words:
        return words
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return expectation(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, UnionType):
        return " or ".join(expectation(choice, metadata if choice is not NoneType else ()) for choice in arguments)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin is tuple:
        return "a list of " + expectation(arguments[0]).removeprefix("a ").replace("number", "numbers", 1)
    if origin is dict or _is_group(annotation):
        return MAPPING
    return _WORDS[annotation] + _range(metadata)


def _expectation_of_items(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin not in (tuple, dict):
        return ""
    item = arguments[0] if origin is tuple else arguments[1]
    return "" if item is Any else expectation(item)


def _range(metadata: Iterable[Any]) -> str:
    bounds = [bound for item in metadata for bound in (item.metadata if isinstance(item, FieldInfo) else [item])]
    words = [f">= {bound.ge}" for bound in bounds if isinstance(bound, Ge)]
    words += [f"> {bound.gt}" for bound in bounds if isinstance(bound, Gt)]
    words += [f"<= {bound.le}" for bound in bounds if isinstance(bound, Le) and bound.le not in UNSAID_LIMITS]
    return f" {' and '.join(words)}" if words else ""
