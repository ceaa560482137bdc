"""The pages of the reference, written from the code: ``python -m tests.pages.reference FOLDER``; ``make docs`` does it.

Commands come from typer's own tree, keys from the models, with those of RLlib that there are not, metrics from their
table, and exit codes from the errors. The page about Python has the names that mkdocstrings documents.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

import rlexp
import rlexp.replay
from rlexp.board.messages import basics as board_basics
from rlexp.cli import app
from rlexp.cluster.session import RayStoppedError
from rlexp.commands.command import HELP_OPTIONS, help_records
from rlexp.config.keys.agents import AGENTS, experiment_class
from rlexp.config.keys.metrics import KNOWN_METRICS, METRICS, Metric
from rlexp.config.reference.explain import KeyReference, key_references, shown_default
from rlexp.config.rllib.ages import changed_defaults, kept_defaults
from rlexp.config.rllib.names import absent_keys
from rlexp.errors import RlexpError
from rlexp.runs.rows import COLUMNS

ENDED_OTHERWISE = {
    0: "The command did what it was asked to do.",
    1: "A trial or the command failed, and `error:` says why.",
    129: "SIGHUP, a closed terminal: the trials saved checkpoints.",
    130: "Ctrl-C: the trials saved checkpoints, and the command to resume was printed.",
    141: "The reader of the output ended first, as in `rlexp ls | head`.",
    143: "SIGTERM: the trials saved checkpoints.",
}
"""Exit codes that no error has."""
CLASSES = {
    "What a training returns": ("rlexp.api.runs.Run", "rlexp.api.runs.FinishedTrial"),
    "Experiments that were read": ("rlexp.api.experiments.LoadedExperiments", "rlexp.api.experiments.LoadedExperiment"),
    "Policies": ("rlexp.agents.trained_policy.TrainedPolicy",),
    "Callbacks": tuple(
        f"rlexp.callbacks.{name}"
        for name in (
            "Callbacks",
            "Episode",
            "EpisodeStart",
            "EpisodeStep",
            "EpisodeEnd",
            "IterationEnd",
            "SavedCheckpoint",
        )
    ),
    "Replay": tuple(f"rlexp.replay.{name}" for name in rlexp.replay.__all__),
}
"""What the page about Python has beside the functions, by title; errors are in a part of their own."""


def cli_page() -> str:
    """Return the page of commands, options and exit codes."""
    root = get_command(app)
    parts = [
        "# Commands\n",
        "`rlexp COMMAND --help` prints the same. Options can stand before or after the files.\n",
        "| command | |\n|---|---|",
    ]
    context = typer.Context(root, info_name="rlexp", **HELP_OPTIONS)  # Click keeps the names of the first call
    commands = list(_commands(root, context))
    top = [each for each in commands if each[1].count(" ") == 1]
    parts.append("\n".join(f"| [`{path}`](#{path.replace(' ', '-')}) | {_summary(each)} |" for each, path, _ in top))
    parts += [_command(command, path, context) for command, path, context in commands]
    return "\n".join(parts) + "\n" + _exit_codes()


def _commands(group: Any, context: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield each command below a group, with what is typed for it; groups before their commands."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = typer.Context(command, info_name=name, parent=context)
        yield command, f"{context.command_path} {name}", below
        if hasattr(command, "list_commands"):
            yield from _commands(command, below)


def _summary(command: Any) -> str:
    return " ".join(cleandoc(command.help or "").partition("\n\n")[0].split())


def _command(command: Any, path: str, context: Any) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"\n## {path}\n", f"```text\n{path} {usage}\n```\n", cleandoc(command.help or ""), ""]
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        if row := _parameter(parameter, context):
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(row)
    for title, rows in panels.items():
        lines += ["", f"| {title or 'option'} | |", "|---|---|", *rows]
    return "\n".join(lines)


def _parameter(parameter: Any, context: Any) -> str:
    """Return the row of an option or argument; empty for one that help does not show, and for help itself."""
    record = next(help_records([parameter], context), None)
    if record is None or parameter.name == "help" or "--help" in parameter.opts:
        return ""
    name, text = (" ".join(part.split()) for part in record)
    return f"| `{name}` | {text.replace('|', '&#124;')} |"  # in code a | ends no cell


def _exit_codes() -> str:
    rows = {code: [text] for code, text in ENDED_OTHERWISE.items()}
    for error in _errors():
        if "exit_code" in vars(error) and error is not RlexpError:
            rows.setdefault(error.exit_code, []).append(_first(error))
    lines = [f"| {code} | {' '.join(dict.fromkeys(texts))} |" for code, texts in sorted(rows.items())]
    return "\n## Exit codes\n\n| code | |\n|---|---|\n" + "\n".join(lines) + "\n"


def _errors() -> Iterator[type[RlexpError]]:
    """Yield the errors that a user can meet, each class after its base."""
    waiting: list[type[RlexpError]] = [RlexpError]
    while waiting:
        error = waiting.pop(0)
        if error.__module__ in (RlexpError.__module__, board_basics.__name__) or error is RayStoppedError:
            yield error
        waiting += error.__subclasses__()


def _first(documented: type) -> str:
    return " ".join(cleandoc(documented.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")


def metrics_page() -> str:
    """Return the page of metrics, by what they are good for."""
    agents = _agents_of()
    chosen = list(METRICS.values())
    groups = {
        "Metrics that stop and search can name": [each for each in chosen if each.name in KNOWN_METRICS],
        "Other columns": [each for each in chosen if each.name not in KNOWN_METRICS],
    }
    head = (
        "---\nhide: [toc]\n---\n\n# Metrics\n\n`rlexp explain METRIC` prints the same. "
        "A row of `result.json` and `progress.csv` has these names: "
        "`info/num_updates` is `row['info']['num_updates']` in `result.json`. "
        "TensorBoard's tags have `ray/tune/` before the name. "
        "Metrics of [callbacks](../callbacks.md) are `custom_metrics/NAME_mean`, `_min` and `_max`.\n"
    )
    return head + "".join(f"\n## {title}\n\n{_metric_table(rows, agents)}" for title, rows in groups.items())


def _agents_of() -> Mapping[str, str]:
    """Return which agents have a metric, for those that not all have."""
    fields = {run: experiment_class(run).model_fields["config"] for run in AGENTS}
    columns = {run: {*COLUMNS, *getattr(field.annotation, "AGENT_COLUMNS", ())} for run, field in fields.items()}
    having = {name: [run for run in AGENTS if name in columns[run]] for name in METRICS}
    return {name: "all" if len(runs) in (0, len(AGENTS)) else ", ".join(runs) for name, runs in having.items()}


def _metric_table(rows: list[Metric], agents: Mapping[str, str]) -> str:
    lines = ["| metric | agents | meaning | RLlib's other names |", "|---|---|---|---|"]
    for metric in rows:
        old = ", ".join(f"`{name}`" for name in metric.old_names)
        lines.append(f"| `{metric.name}` | {agents[metric.name]} | {metric.meaning} | {old} |")
    return "\n".join(lines) + "\n"


def python_page() -> str:
    """Return the page that mkdocstrings fills from docstrings."""
    functions = [f"rlexp.{name}" for name in rlexp.__all__ if callable(getattr(rlexp, name))]
    errors = [f"{error.__module__}.{error.__name__}" for error in _errors()]
    parts = ["# Python\n\n[Python](../python.md) shows how they are used; `help(rlexp.run)` prints the same.\n"]
    for title, names in {"Functions": functions, **CLASSES, "Errors": errors}.items():
        parts.append(f"\n## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names))
    return "".join(parts)


_HEAD = """\
---
hide: [toc]
---

# Keys

`rlexp explain KEY` prints the same in a terminal, and `rlexp explain AGENT` the keys of an agent. Any value can be
`grid_search: [...]`. Keys under `optimizer` can stand directly under `config` too.
"""

_DEFAULTS = """\
## Defaults that depend on the age of a file

RLlib changed some of its defaults. A file whose spelling belongs to certain releases of RLlib gets the defaults of
these releases, for keys that it does not give. A notice names them, and `rlexp convert` writes them out. To choose a
value yourself, write the key.

- The id of an env counts as spelling too: `Pendulum-v1` belongs to RLlib 1.6 or later.
- A key that contradicts most others is not counted. A notice names it, with its line.
- Files in rlexp's spelling get the defaults above. So do files with a key that only rlexp has, and files in which more
  than a third of the keys contradict the others.
- The releases that a PPO file may belong to can differ in `gamma`, `horizon`, `batch_mode`, `observation_filter` or
  `normalize_actions`. One notice names these keys then.

"""


def keys_page() -> str:
    """Return the page."""
    keys = [key for key in key_references() if not key.is_group]
    parts = [_HEAD]
    for title, chosen in (
        ("Keys beside `config`", [key for key in keys if key.path[0] != "config"]),
        ("Keys under `config`", [key for key in keys if key.path[0] == "config"]),
    ):
        parts.append(f"## {title}\n\n" + "\n".join(_table(chosen)) + "\n")
    parts.append(_DEFAULTS + "\n".join(_default_table()) + "\n\n" + "\n".join(_kept_table()) + "\n")
    parts.append("## Keys of RLlib that rlexp does not have\n\n" + "\n".join(_absent_table()) + "\n")
    return "\n".join(parts)


def _table(keys: list[KeyReference]) -> Iterator[str]:
    yield "| key | values | default | meaning | other spellings |"
    yield "|---|---|---|---|---|"
    for key in keys:
        short = {spelling: _short(spelling) for spelling in key.spellings}
        spellings = ", ".join(f"`{spelling if text == key.dotted else text}`" for spelling, text in short.items())
        cells = [f"`{_short(key.dotted)}`", key.expects, _defaults(key), key.meaning.replace("``", "`"), spellings]
        yield "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _defaults(key: KeyReference) -> str:
    """Return the default, or each of the agents that have the key with its own; few keys have several."""
    if key.required:
        return "required"
    shown = {run: f"`{shown_default(value)}`" for run, value in key.defaults.items()}
    if len(set(shown.values())) == 1:
        only = "" if len(shown) == len(AGENTS) else f" ({', '.join(shown)} only)"
        return next(iter(shown.values())) + only
    return ", ".join(f"{run} {text}" for run, text in shown.items())


def _default_table() -> Iterator[str]:
    yield "| key | agents | default, by release of RLlib |"
    yield "|---|---|---|"
    for default in changed_defaults():
        values = []
        for number, (release, value) in enumerate(default.values):
            is_same = default.same_as is not None and number == len(default.values) - 1
            shown = f"that of `{_short('.'.join(default.same_as or ()))}`" if is_same else f"`{shown_default(value)}`"
            values.append(f"from {'.'.join(map(str, release))} on: {shown}")
        beside = f" (with `{_short('.'.join(default.beside))}`)" if default.beside else ""
        agents = ", ".join(default.agents)
        yield f"| `{_short('.'.join(default.path))}`{beside} | {agents} | {'; '.join(values)} |"


def _kept_table() -> Iterator[str]:
    yield "| key whose default is rlexp's in every file | why |"
    yield "|---|---|"
    for kept in kept_defaults():
        yield f"| {', '.join(f'`{_short(key)}`' for key in kept.keys)} | {kept.reason} |"


def _absent_table() -> Iterator[str]:
    reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for absent in (absent for run in AGENTS for absent in absent_keys(run)):
        start = "not supported: " if absent.is_feature else "no effect: "
        reasons[start + absent.reason][_short(".".join(absent.path))] = None
    yield "| what happens | keys |"
    yield "|---|---|"
    for reason, keys in sorted(reasons.items()):
        yield f"| {reason} | {', '.join(f'`{key}`' for key in keys)} |"


def _short(dotted: str) -> str:
    return dotted.removeprefix("config.")


PAGES = {"commands.md": cli_page, "keys.md": keys_page, "metrics.md": metrics_page, "api.md": python_page}


def main(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.pages.reference FOLDER")
    main(Path(sys.argv[1]))
