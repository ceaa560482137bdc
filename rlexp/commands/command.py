"""What commands are made of: options, help in panels, hints for options that do not exist, overrides without ``-o``.

Overrides may be bare words: ``rlexp run FILE config.lr=1e-4``, as W&B's sweeps and Hydra's users write them.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand

from rlexp.errors import UsageError
from rlexp.text import seconds_of

MOST: Final = 10**15
"""Far above any count or time that will be reached; exact in a float and in JSON."""
_LONGEST_SHOWN: Final = 60
DEFAULT_OUT: Final = Path("results")
"""The directory in which runs are created if nothing names another."""
_MOST_WITHOUT_PANELS: Final = 8
"""Options that are read at a glance; more of them are grouped."""
_MOST_COLUMNS: Final = 30
"""The widest name of an option beside its help; a longer one has a line of its own."""
_LIKENESS: Final = 0.75
"""How alike two options must be for one to be offered in place of the other."""
_FILE_SUFFIXES: Final = (".yaml", ".yml")
_OF_FILES: Final = ("-f", "--config", "--config-file", "--experiment", "--file", "--yaml")
"""What other programs call an option for an experiment file."""
_OTHER_OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("-v", "--verbose", "--trace"), ("--debug",)),
    **dict.fromkeys(("--output", "--output-dir", "--log-dir", "--local-dir", "--dir", "--save-dir"), ("--out",)),
    **dict.fromkeys(("--experiment-name", "--run-name", "--tag"), ("--name",)),
    **dict.fromkeys(("--time-limit", "--timeout", "--max-time"), ("--time-budget",)),
    **dict.fromkeys(("--trials", "--num-trials", "--n-trials"), ("--num-samples",)),
    **dict.fromkeys(("--metric", "--metrics"), ("--tag", "--metric")),
    **dict.fromkeys(("--x", "--x-axis", "--xaxis"), ("--by",)),
    **dict.fromkeys(("--out", "-o", "--save", "--format"), ("--onnx", "--png", "--out")),
    **dict.fromkeys(("--seeds", "--num-episodes", "--n-episodes", "--games"), ("--episodes",)),
    "--silent": ("--quiet",),
    "--force": ("--overwrite",),
    "--render": ("--video",),
}
"""What other programs call options; of several, the first that the command has."""
_OTHER_COMMANDS: Final = {
    **dict.fromkeys(("--resume", "--continue", "--restore"), "rlexp resume DIR continues a run"),
    **dict.fromkeys(("--logdir", "--log-dir"), "a folder needs no option: rlexp tensorboard DIR"),
}
"""What to type in place of an option that no option replaces."""
_WITHOUT_A_FILE: Final = {
    **dict.fromkeys(("--algorithm", "--agent", "--run", "--policy"), "--algo"),
    **dict.fromkeys(("--environment", "--env-id", "--env-name", "--gym-env"), "--env"),
}
"""What other programs call the options that take the place of a file."""
_OF_SUFFIX: Final = {".onnx": "--onnx", ".html": "--html", ".png": "--png", ".csv": "--csv"}
"""The option for a file that a command writes."""
_BRACKETS: Final = re.compile(r"[][{}]|\.\.\.")
_NOT_A_CHOICE: Final = re.compile(r"'(?P<given>.*)' is not one of (?P<choices>.+?)\.?$")
_EXTRA_WORDS: Final = re.compile(r"unexpected extra argument.*?\((?P<words>[^()]+)\)$")
_ENV_WITH_VERSION: Final = re.compile(r"[\w./-]+-v\d+")
_NEGATIVE_NUMBER: Final = re.compile(r"-\.?\d")
_DOTTED_KEY: Final = re.compile(r"[A-Za-z_]\w*(\.[\w/-]+)*=")
"""The start of an override; parts after the first can be metrics, with slashes: ``stop.info/num_steps_trained=1``."""
_END_OF_OPTIONS: Final = "--"
OVERRIDE_OPTION: Final = "-o"
_PYTHON_TYPE: Final = re.compile(r" <(list\[\w+\]|path|str)>$")


class Panel(StrEnum):
    """The groups of options in help texts, in their order."""

    TRAINED = "What to train"
    SEARCHED = "What to search"
    RESULTS = "Where results go"
    LIMITS = "Limits"
    MACHINES = "Machines"
    BOARD = "Boards"
    CODE = "Code that the run names"
    OTHERS = "Options"
    OUTPUT = "Output"


def argument(metavar: str, sentence: str, completion: Callable[..., Any] | None = None) -> Any:
    """Return an argument; ``sentence`` explains it in its help, and a shell completes it by ``completion``."""
    return typer.Argument(metavar=metavar, help=sentence, show_default=False, autocompletion=completion)


def option(written: str, sentence: str, panel: Panel | None = None, **others: Any) -> Any:
    """Return an option as it is ``written``: its names, and a word for its value, ``-o --out DIR``.

    A flag has no such word, nor a choice of words. ``sentence`` explains it in its help, in a panel if there are many.
    """
    names = written.split()
    metavar = None if names[-1].startswith("-") else names.pop()
    return typer.Option(*names, metavar=metavar, help=sentence, rich_help_panel=panel, **others)


def whole(written: str, sentence: str, least: int, most: int = MOST, panel: Panel | None = None) -> Any:
    """Return an option that takes a whole number from ``least`` to ``most``."""
    expected = f"a whole number from {least} to {most}"
    return option(written, sentence, panel, parser=_reader(written, sentence, int, expected, least, most))


def real(written: str, sentence: str, least: float) -> Any:
    """Return an option that takes a finite number from ``least`` on."""
    expected = f"a number from {least:g} to {MOST:g}"
    return option(written, sentence, parser=_reader(written, sentence, float, expected, least, MOST))


def duration(names: str, sentence: str, panel: Panel | None = None) -> Any:
    """Return an option that takes a duration, such as 90s or 2h, as seconds."""
    first = names.split()[0]
    return option(f"{names} DURATION", sentence, panel, parser=lambda text: seconds_of(text, first))


def _reader(
    written: str, sentence: str, kind: Callable[[str], float], expected: str, least: float, most: float
) -> Callable[[str], float]:
    first, *_, metavar = written.split()

    def read(text: str) -> float:
        with suppress(ValueError):
            value = kind(text)
            if least <= value <= most:  # NaN is not
                return value
        raise UsageError(f"{first} must be {expected}, got {_shown(text)}", f"{first} {metavar}: {sentence}")

    return read


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


HELP_OPTIONS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}
"""Settings of a context: the options that print what a command does."""
APP_SETTINGS: Final[dict[str, Any]] = {
    "no_args_is_help": True,
    "context_settings": HELP_OPTIONS,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""Settings of an app with several commands."""


@dataclass
class ErrorOptions:
    """How an error that ends a command is shown: the ``obj`` of the command's context."""

    show_tracebacks: bool = False


class Command(TyperCommand):
    """A command; its help shows the options by their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options of each panel; a few options are written together."""
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        sections = {"Arguments": [param for param in self.get_params(ctx) if param.param_type_name == "argument"]}
        if len(options) <= _MOST_WITHOUT_PANELS:
            sections[Panel.OTHERS] = options
        else:
            sections |= {panel: [each for each in options if _panel_of(each) == panel] for panel in Panel}
        records = {title: list(help_records(params, ctx)) for title, params in sections.items()}
        width = max((len(name) for name, _ in chain(*records.values())), default=0)
        for title, rows in records.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(min(width, _MOST_COLUMNS)), text) for name, text in rows])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; raises UsageError, with a hint, if it cannot be parsed."""
        try:
            return super().parse_args(ctx, self.words_to_parse(ctx, args))
        except Exception as error:
            kind = type(error).__name__  # these classes have no public names
            if kind == "NoSuchOption":
                option = error.option_name  # type: ignore[attr-defined]
                message = f"{ctx.command_path} has no option {option}"
                raise UsageError(message, self._hint(ctx, option, args)) from None
            if kind == "MissingParameter":
                argument = error.param  # type: ignore[attr-defined]
                name = _BRACKETS.sub("", argument.metavar or argument.name)
                raise UsageError(f"{ctx.command_path} needs {name}", f"{name}: {argument.help}") from None
            if kind == "BadOptionUsage":
                option = error.option_name  # type: ignore[attr-defined]
                raise UsageError(f"{ctx.command_path}: {option} needs a value", self._meaning(option)) from None
            choice = _NOT_A_CHOICE.search(str(error))
            if choice is not None:
                option = error.param.opts[0]  # type: ignore[attr-defined]
                names = choice["choices"].replace("'", "")
                message = f"{option} must be one of {names}, got {choice['given']}"
                raise UsageError(message, self._meaning(option)) from None
            extra = _EXTRA_WORDS.search(str(error))
            if extra is None:
                raise
            message = f"{ctx.command_path} cannot take {extra['words']}"
            raise UsageError(message, self._hint_of_word(ctx, extra["words"])) from None

    def words_to_parse(self, ctx: Any, args: Sequence[str]) -> list[str]:
        """Return the command line as it is parsed."""
        return list(args)

    def _hint_of_word(self, ctx: Any, word: str) -> str:
        """Return the option that takes a word which no argument takes."""
        option = _OF_SUFFIX.get(os.path.splitext(word)[1])
        if "--sweep" in self._option_names():
            return "values of --sweep are one word: --sweep lr=1e-3,1e-4"
        return f"{option} {word}" if option in self._option_names() else f"{ctx.command_path} -h shows what it takes"

    def _option_names(self) -> list[str]:
        return [name for param in self.params if not getattr(param, "hidden", False) for name in param.opts]

    def _meaning(self, option: str) -> str | None:
        """Return how an option is written, and its help."""
        found: Any = next((param for param in self.params if option in param.opts), None)
        return None if found is None else f"{option}{' ' * bool(found.metavar)}{found.metavar or ''}: {found.help}"

    def _hint(self, ctx: Any, option: str, args: Sequence[str]) -> str:
        """Return what to type in place of an option that does not exist."""
        if option in _OF_FILES:
            return f"a file needs no option: {ctx.command_path} FILE"
        instead = _WITHOUT_A_FILE.get(option)
        if instead in self._option_names() and not any(word.endswith(_FILE_SUFFIXES) for word in args):
            return f"did you mean {instead}?"
        other = _OTHER_COMMANDS.get(option)
        if other is not None and not any(name in self._option_names() for name in _OTHER_OPTIONS.get(option, ())):
            return other
        return (
            self.hint_of_key(option.lstrip("-").replace("-", "_"), _value_after(option, args))
            or self._nearest(option)
            or f"{ctx.command_path} -h lists the options"
        )

    def hint_of_key(self, name: str, value: str | None) -> str | None:
        """Return how to set the key of that name; None for a command that sets none."""
        return None

    def _nearest(self, option: str) -> str | None:
        names = [name for name in self._option_names() if name.startswith("--")]
        option = next((each for each in _OTHER_OPTIONS.get(option, ()) if each in names), option)
        nearest = get_close_matches(option, names, n=1, cutoff=_LIKENESS)
        return f"did you mean {nearest[0]}?" if nearest else None


class CommandWithOverrides(Command):
    """A command with the option ``-o``, which takes overrides without it as well."""

    def words_to_parse(self, ctx: Any, args: Sequence[str]) -> list[str]:
        """Return the command line with ``-o`` before each bare override: so later ones win, however they are given."""
        options = {name for param in self.params if _takes_value(param) for name in param.opts}
        if ctx.resilient_parsing and args and args[-1] in options:
            args = args[:-1]  # a shell completes its value; without one, the files before it would not be parsed
        return list(_with_option(args, options))

    def hint_of_key(self, name: str, value: str | None) -> str | None:
        """Return the override that sets the key of that name, or a key that other libraries call so."""
        from rlexp.config.reference.candidates import override_meant
        from rlexp.config.reference.hints import NOT_HERE

        override = override_meant(name, value)
        if override is None:
            return NOT_HERE.get(name)
        is_searched = any("--sweep" in param.opts for param in self.params) and "," in (value or "")
        return f"--sweep {override} tries each" if is_searched else f"{OVERRIDE_OPTION} {override} sets this key"

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the completions of a word that no argument takes: options and overrides."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        (option,) = (param for param in self.params if OVERRIDE_OPTION in param.opts)
        return option.shell_complete(ctx, incomplete)


def as_given(text: str) -> str:
    """Return the value of ``-o`` itself: typer would turn a BareOverride into plain text."""
    return text


def _takes_value(param: Any) -> bool:
    return param.param_type_name == "option" and not param.is_flag


def _with_option(words: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield ``words`` with ``-o`` before overrides; a word after one of ``options`` or after ``--`` is none."""
    remaining = iter(words)
    for word in remaining:
        if is_override(word):
            from rlexp.config.command_line import BareOverride  # with YAML and the keys, which only its value needs

            yield from (OVERRIDE_OPTION, BareOverride(word))
            continue
        yield word
        if word == _END_OF_OPTIONS:
            yield from remaining
        elif word in options:
            yield from (value for value in (next(remaining, None),) if value is not None)


def is_override(word: str) -> bool:
    """Return whether a word is an override: a dotted key, ``=`` and a value, and not the name of a file.

    A value may be longer than any file name can be: ``Path.exists`` raises OSError for it.
    """
    return _DOTTED_KEY.match(word) is not None and not os.path.exists(word)


def command_class(command: Callable[..., None]) -> type[Command]:
    """Return the class of a command by its parameters."""
    return CommandWithOverrides if "overrides" in inspect.signature(command).parameters else Command


def _panel_of(option: Any) -> Panel:
    return Panel(option.rich_help_panel) if option.rich_help_panel else _PANELS_OF_ALL.get(option.name, Panel.OTHERS)


_PANELS_OF_ALL: Final = {"help": Panel.OUTPUT, "debug": Panel.OUTPUT}


def help_records(params: Iterable[Any], ctx: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the help of each argument and option that help shows; names without Python's types."""
    for name, text in filter(None, (param.get_help_record(ctx) for param in params)):
        yield _PYTHON_TYPE.sub("", name), text


def _value_after(option: str, args: Sequence[str]) -> str | None:
    """Return what was given as the value of an unknown option: after ``=``, or the next word."""
    for place, word in enumerate(args):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option:
            following = next(iter(args[place + 1 :]), "")
            is_option = following.startswith("-") and not _NEGATIVE_NUMBER.match(following)
            return following if following and not is_option and not following.endswith(_FILE_SUFFIXES) else None
    return None


OTHER_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("plot", "plots", "graph"), "rlexp compare RUN --png curves.png draws curves; rlexp logs RUN is text"
    ),
    **dict.fromkeys(("algos", "algo", "algorithms", "agents", "agent"), "rlexp explain run names the agents"),
    **dict.fromkeys(("envs", "env"), "rlexp explain env says what an env can be"),
    **dict.fromkeys(("keys", "params", "config", "docs"), "rlexp explain lists all keys"),
    **dict.fromkeys(("metrics",), "rlexp explain stop explains metrics; rlexp logs RUN shows the metrics of a run"),
    **dict.fromkeys(("play", "enjoy", "eval", "test", "rollout"), "rlexp evaluate RUN plays episodes"),
    **dict.fromkeys(("watch", "render", "video", "film"), "rlexp evaluate RUN --video DIR films an episode"),
    **dict.fromkeys(
        ("serve", "deploy"), "rlexp export RUN writes the policy as ONNX; rlexp board serve starts a board"
    ),
    **dict.fromkeys(("save", "onnx"), "rlexp export RUN writes the policy as ONNX"),
    **dict.fromkeys(
        ("list", "status", "ps", "runs", "show", "info", "results"), "rlexp ls lists runs and their status"
    ),
    **dict.fromkeys(("stop", "kill", "end"), "Ctrl-C stops a run; rlexp cancel ID ends a task on a board"),
    **dict.fromkeys(("tb", "board-serve", "dashboard"), "rlexp tensorboard RUN starts TensorBoard"),
    **dict.fromkeys(("tune", "search", "hpo", "optimize"), "rlexp sweep FILE searches hyperparameters"),
    **dict.fromkeys(("continue", "restart", "restore"), "rlexp resume RUN continues a run"),
    **dict.fromkeys(("validate", "lint", "verify"), "rlexp check FILE finds the errors in a file"),
    **dict.fromkeys(
        ("rm", "delete", "clean"), "rlexp prune RUN removes old checkpoints; rlexp doctor --clean leftovers"
    ),
    **dict.fromkeys(("worker", "actor", "trainer", "work"), "rlexp join URL plays for trials of a board"),
    **dict.fromkeys(("log", "tail"), "rlexp logs RUN shows the metrics of a run"),
    **dict.fromkeys(("start", "learn", "exec", "fit"), "rlexp run FILE trains the experiments of a file"),
    **dict.fromkeys(("diff", "report", "rank"), "rlexp compare RUN RUN compares runs"),
    **dict.fromkeys(("example", "zoo", "templates"), "rlexp examples lists the shipped experiments"),
    **dict.fromkeys(("new", "create", "scaffold"), "rlexp init writes an experiment to begin with"),
    "version": "rlexp --version prints the version",
    "help": "rlexp --help lists the commands",
}
"""What people and other programs call commands, and the command that does it."""


def hint_for_command(name: str, commands: Collection[str]) -> str:
    """Return what does what an unknown command would do."""
    if name.endswith(_FILE_SUFFIXES):
        return f"rlexp run {name} trains the experiments of a file"
    if name.lower() in OTHER_NAMES:
        return OTHER_NAMES[name.lower()]
    if _ENV_WITH_VERSION.fullmatch(name):
        return f"rlexp run --algo PPO --env {name} trains an agent on it"
    meant = get_close_matches(name, commands, n=1)
    return f"did you mean rlexp {meant[0]}?" if meant else "rlexp -h lists the commands"
