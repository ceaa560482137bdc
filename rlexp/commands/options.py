"""The options that several commands share, and how they say that files are read.

Overrides may be bare words: ``rlexp run FILE config.lr=1e-4``, as W&B's sweeps and Hydra's users write them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.cluster.session import OWN, Joining
from rlexp.commands.basic_options import duration, whole
from rlexp.commands.command import Command, Panel
from rlexp.commands.completion import complete_file, complete_override
from rlexp.config.command_line import Adjust, BareOverride, Flag, LoadOptions
from rlexp.config.keys.search import SCHEDULERS
from rlexp.config.keys.tracking import TRACKERS
from rlexp.config.reference.hints import sampler_meant
from rlexp.errors import UsageError
from rlexp.schedules import LARGEST_SEED

OVERRIDE_OPTION: Final = "-o"
_DOTTED_KEY: Final = re.compile(r"[A-Za-z_]\w*(\.[\w/-]+)*=")
"""The start of an override; parts after the first can be metrics, with slashes: ``stop.info/num_steps_trained=1``."""
_END_OF_OPTIONS: Final = "--"


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

        override = override_meant(name, value)
        if override is None:
            return None
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


Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Experiment files.", show_default=False, autocompletion=complete_file),
]
FilesOrNone = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="Experiment files; none with --algo and --env.",
        show_default=False,
        autocompletion=complete_file,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        OVERRIDE_OPTION,
        "--override",
        metavar="KEY.PATH=VALUE",
        parser=as_given,
        autocompletion=complete_override,
        help="Override a value in every experiment; repeatable. KEY.PATH=VALUE alone does the same.",
        rich_help_panel=Panel.TRAINED,
    ),
]
Seed = Annotated[int | None, whole("--seed", "N", "Seed for every experiment.", 0, LARGEST_SEED, Panel.TRAINED)]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        envvar="RLEXP_OUT",
        help="Directory in which runs are created.",
        rich_help_panel=Panel.RESULTS,
    ),
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the directory in OUT.", rich_help_panel=Panel.RESULTS)
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace a finished run or sweep of the same name.", rich_help_panel=Panel.RESULTS
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be trained, create nothing.", rich_help_panel=Panel.OUTPUT)
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module that registers environments; repeatable.",
        rich_help_panel=Panel.TRAINED,
    ),
]
AllowUnknown = Annotated[
    bool,
    typer.Option("--allow-unknown", help="Ignore unknown keys, with a notice each.", rich_help_panel=Panel.TRAINED),
]
Fit = Annotated[
    bool,
    typer.Option(
        "--fit",
        help="Reduce workers, replay shards, GPUs and replay to this machine or cluster.",
        rich_help_panel=Panel.MACHINES,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "--ray-address",
        metavar="HOST:PORT",
        help="Train on the Ray cluster with this head (auto: this machine's; local: none). "
        "Default: RLEXP_ADDRESS, then RAY_ADDRESS.",
        rich_help_panel=Panel.MACHINES,
    ),
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Wait so long (90s, 30m, 2h) until the cluster has room.",
        rich_help_panel=Panel.MACHINES,
    ),
]
WorkingDir = Annotated[
    bool,
    typer.Option(
        "--working-dir",
        help="Send the current folder to all nodes of the cluster (at most 100 MB).",
        rich_help_panel=Panel.MACHINES,
    ),
]
SearcherName = StrEnum("SearcherName", ["grid", "random", "optuna"])
SchedulerName = StrEnum("SchedulerName", list(SCHEDULERS))  # type: ignore[misc]
Mode = StrEnum("Mode", ["max", "min"])
Searched = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="KEY=A,B,C",
        help="Search a key over values, lr=1e-3,1e-4, or a sampler, 'lr={loguniform: [1e-5, 1e-2]}'; repeatable.",
        rich_help_panel=Panel.SEARCHED,
    ),
]
Seeds = Annotated[
    int | None, whole("--seeds", "N", "Train everything N times, with different seeds.", 1, 10**6, Panel.TRAINED)
]
SeedsOfConfigurations = Annotated[
    int | None,
    whole(("--seeds", "--num-seeds"), "N", "Trials of each configuration, with other seeds.", 1, 10**6, Panel.SEARCHED),
]
TimeBudget = Annotated[
    float | None,
    duration(
        "--time-budget", "--time-budget-s", sentence="End all trials after 90s, 30m, 2h or 1d.", panel=Panel.LIMITS
    ),
]
Tracking = StrEnum("Tracking", [*TRACKERS, "none"])  # type: ignore[misc]
Track = Annotated[
    list[Tracking] | None,
    typer.Option(
        "--track",
        metavar="wandb|mlflow|none",
        help="Record trials with this tracker too, whatever the file says; none: with none. Repeatable.",
        rich_help_panel=Panel.RESULTS,
    ),
]


def load_options(
    imports: Sequence[str] | None, allow_unknown: bool, fit: bool = False, joining: Joining = OWN
) -> LoadOptions:
    """Return how to read files; ``fit`` scales their experiments to this machine, or the cluster that is joined."""
    adjust = _fitting(room_of(joining)) if fit else None
    return LoadOptions(tuple(imports or ()), allow_unknown=allow_unknown, adjust=adjust)


def _fitting(cluster: Cluster) -> Adjust:
    from rlexp.cluster.room.fit import fitted  # with the packing of clusters, for --fit only

    return partial(fitted, cluster=cluster)


def room_of(joining: Joining) -> Cluster:
    """Return this machine, or the nodes of the cluster that is joined; raises ResourceError if there is no cluster."""
    return Cluster.of(this_machine()) if joining.address is None else _nodes_at(joining.address)


@cache
def _nodes_at(address: str) -> Cluster:
    """Return the nodes of a cluster at the first call, which takes seconds; later calls return the same."""
    from rlexp.cluster.probe import probe_cluster

    return probe_cluster(address).cluster


def track_flags(chosen: Sequence[Tracking] | None) -> tuple[Flag, ...]:
    """Return ``--track`` as a value of a key; raises UsageError if ``none`` is beside others."""
    if not chosen:
        return ()
    names = [name for name in dict.fromkeys(map(str, chosen)) if name != "none"]
    if names and "none" in chosen:
        raise UsageError("--track none cannot be combined with other trackers", "leave one of them out")
    shown = " ".join(f"--track {name}" for name in names) or "--track none"
    return (Flag(shown, "track.to", f"[{', '.join(names)}]"),)


def seed_flags(number: int | None) -> tuple[Flag, ...]:
    """Return ``--seeds`` as a value of a key."""
    return () if number is None else (Flag(f"--seeds {number}", "num_seeds", str(number)),)


def search_flags(given: dict[str, Any], searched: Sequence[str]) -> tuple[Flag, ...]:
    """Return the values of the options as values of keys, which the file's reader lays over the file."""
    section = (
        Flag(f"{_SHOWN.get(key, '--' + key.replace('_', '-'))} {value}", f"search.{key}", str(value))
        for key, value in given.items()
        if value is not None
    )
    for text in searched:
        if "=" not in text:
            raise UsageError(f"--sweep {text} names no values", f"write --sweep lr=1e-3,1e-4 or {_SAMPLED}")
        _refuse_other_forms(text)
    values = ((text, *text.partition("=")[::2]) for text in searched)
    return (*section, *(Flag(f"--sweep {text}", key, _searched(value)) for text, key, value in values))


_SHOWN: Final = {"num_seeds": "--seeds", "time_budget_s": "--time-budget"}
"""Options that are not called like their keys."""
_SAMPLED: Final = "--sweep 'lr={loguniform: [1e-5, 1e-2]}'"
_CALLED: Final = re.compile(r"(?P<key>[^=]+)=\s*(?P<sampler>[A-Za-z_.]+)\s*[:(\[](?P<values>.*?)[)\]]*")


def _refuse_other_forms(text: str) -> None:
    """Raise UsageError for ``lr=loguniform:1e-5,1e-2`` and ``lr=loguniform(1e-5, 1e-2)``."""
    found = _CALLED.fullmatch(text)
    sampler = sampler_meant(found["sampler"].rpartition(".")[2]) if found is not None else None
    if found is None or sampler is None:
        return
    values = ", ".join(value.strip() for value in found["values"].strip("[]() ").split(","))
    raise UsageError(
        f"--sweep {text}: {sampler} is written as a mapping",
        f"write --sweep '{found['key']}={{{sampler}: [{values}]}}'",
    )


def _searched(text: str) -> str:
    """Return a list of values as a grid; a sampler, ``{loguniform: [1e-4, 1e-2]}``, stays as it is."""
    return text if text.lstrip().startswith("{") else f"{{grid_search: [{text}]}}"
