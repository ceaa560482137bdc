"""Overrides as bare words: ``rlexp run FILE config.lr=1e-4``, as W&B's sweeps and Hydra's users write them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from typer.core import TyperCommand

from rlexp.config.command_line import BareOverride

OVERRIDE_OPTION: Final = "-o"
_DOTTED_KEY: Final = re.compile(r"[A-Za-z_]\w*(\.[\w/-]+)*=")
"""The start of an override; parts behind the first can be metrics, with slashes: ``stop.info/num_steps_trained=1``."""
_END_OF_OPTIONS: Final = "--"


class CommandWithOverrides(TyperCommand):
    """A command with the option ``-o``, which takes overrides without it as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, with ``-o`` before each bare override: so later ones win, however they are given."""
        options = {name for param in self.params if _takes_value(param) for name in param.opts}
        if ctx.resilient_parsing and args and args[-1] in options:
            args = args[:-1]  # a shell completes its value; without one, the files before it would not be parsed
        return super().parse_args(ctx, list(_with_option(args, options)))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what a word can become for which no argument is left: an option, or an override."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        (option,) = (param for param in self.params if OVERRIDE_OPTION in param.opts)
        return option.shell_complete(ctx, incomplete)


def as_given(text: str) -> str:
    """Return the value of ``-o`` itself: typer would make a plain text of a BareOverride."""
    return text


def _takes_value(param: Any) -> bool:
    return param.param_type_name == "option" and not param.is_flag


def _with_option(words: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield ``words`` with ``-o`` before overrides; what follows one of ``options``, or ``--``, is none."""
    remaining = iter(words)
    for word in remaining:
        if is_override(word):
            yield from (OVERRIDE_OPTION, BareOverride(word))
            continue
        yield word
        if word == _END_OF_OPTIONS:
            yield from remaining
        elif word in options:
            yield from (value for value in (next(remaining, None),) if value is not None)


def is_override(word: str) -> bool:
    """Return whether a word is an override: a dotted key, ``=`` and a value, and not the name of a file.

    A value may be longer than any name of a file, for which ``Path.exists`` raises OSError.
    """
    return _DOTTED_KEY.match(word) is not None and not os.path.exists(word)
