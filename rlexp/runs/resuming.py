"""What a run to resume has recorded: its owner, the code that it names, its plan and trials, and its changed keys."""

from __future__ import annotations

import os
import stat
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rlexp.config.command_line import LoadOptions, shown_override
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, load_plan
from rlexp.config.yaml.reader import read_file
from rlexp.errors import ResumeError
from rlexp.files import to_json
from rlexp.processes.locks import RUN_FILE, in_use, is_in_use
from rlexp.runs.directories import derived_name, refuse_foreign
from rlexp.runs.record import EXPERIMENT_FILE, RESOLVED_FILE, RunRecord
from rlexp.runs.rows import flatten
from rlexp.text import masked
from rlexp.user_code.memory import addresses_of, remember, typed_addresses
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, Named, TrustedCode

_IF_DAMAGED: Final = (
    f"put back a copy of it, or run {EXPERIMENT_FILE} of this folder again; "
    "rlexp evaluate, rlexp compare and rlexp logs do not need it"
)


def refuse_untrusted(run: Path, record: RunRecord) -> None:
    """Raise ResumeError if resuming ``run`` could run or overwrite files outside of it.

    All of it must belong to this user and not be writable by all. Its trials must be in it. It must consist of files
    and directories: a write would follow a link, and a pipe would block its reader.
    """
    if is_in_use(run):
        raise in_use(run)  # and its files come and go
    for path in (run.resolve(), *_below(run)):
        try:
            refuse_foreign(path)
            _refuse_no_file(path)
        except FileNotFoundError:
            continue
    for trial in record.trials:
        if not trial.name.isprintable() or trial.directory != derived_name(trial.name):
            message = f"{run / RUN_FILE} points elsewhere: {trial.directory!r} is not the directory of {trial.name!r}"
            raise ResumeError(message, "restore the file from a copy")


def _refuse_no_file(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a directory"
        raise ResumeError(f"{path} is {what}", "resume writes into a run: put files in its place if you trust it")


def _below(run: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(run):
        for name in sorted((*folders, *files)):
            yield Path(folder, name)


def load_recorded_plan(
    path: Path, record: RunRecord, overrides: Sequence[str], trusted: TrustedCode = NOTHING_ALLOWED
) -> Plan:
    """Return the plan that the run at ``path`` has recorded, with ``overrides``; raises ConfigError.

    The plan's modules may be imported. Raises ResumeError if the file is missing or damaged, or names code or a storage
    with which this user has not trained and that is not allowed.
    """
    _refuse_damaged(path / RESOLVED_FILE)
    options = LoadOptions(imports=(*record.imports, *trusted.modules.imports), module_folders=())
    plan = load_plan([path / RESOLVED_FILE], overrides, options=options)
    named = Named(path, record.imports, record.module_folders, plan.named_experiments)
    given = typed_addresses(plan, overrides)
    remember((), given)
    for url in addresses_of(plan):
        if url not in given:
            trusted.check_storage(url, path, str(masked(url)))
    return replace(plan, modules=trusted.decided(named))


def _refuse_damaged(resolved: Path) -> None:
    """Raise ResumeError if ``resolved.yaml`` has no experiments, as no user has written it."""
    read = read_file(resolved, str(resolved))
    if read.root is None:
        first = read.problems[0]
        raise ResumeError(f"a file of the run is damaged or missing: {first.place}  {first.message}", _IF_DAMAGED)


def recorded_trials(path: Path, plan: Plan, record: RunRecord) -> Iterator[Trial]:
    """Yield the trials of ``plan``, read from ``resolved.yaml``, with their former names and order.

    The file has its keys in another order than the original, so a grid's trials have another order and other names. The
    varied values and the seed identify them. Raises ResumeError for an unknown one.
    """
    names: dict[str, deque[str]] = defaultdict(deque)
    for known in record.trials:
        names[_identity(known.varied, known.seed)].append(known.name)
    found: list[Trial] = []
    for trial in plan.trials:
        called = names[_identity(masked(trial.varied), trial.experiment.config.seed)]
        if not called:
            raise ResumeError(
                f"{path / RESOLVED_FILE} makes a trial {trial.name} that {path / RUN_FILE} does not know",
                "do not change num_samples, its grid or its seed",
            )
        found.append(replace(trial, name=called.popleft()))
    for left in names.values():
        if left:
            raise ResumeError(
                f"{path / RESOLVED_FILE} does not make the trial {left[0]} that {path / RUN_FILE} knows",
                "do not change num_samples, and delete no experiment",
            )
    order = {known.name: index for index, known in enumerate(record.trials)}
    for trial in sorted(found, key=lambda trial: order[trial.name]):
        yield replace(trial, index=order[trial.name])


def _identity(varied: Mapping[str, Any], seed: int | None) -> str:
    return to_json([sorted(varied.items()), seed])


_WHAT_IT_RUNS_ON: Final = (
    *("checkpoint_freq", "checkpoint_at_end", "checkpoint_evaluation_episodes"),
    *("keep_checkpoints_num", "checkpoint_score_attr", "max_failures", "reuse_actors", "storage", "track"),
    *("config/num_workers", "config/num_cpus_per_worker", "config/num_gpus_per_worker", "config/num_gpus"),
    *("config/num_learners", "config/num_cpus_per_learner"),
    *("config/min_num_workers", "config/placement", "config/optimizer/num_cpus_per_shard"),
    *("config/num_cpus_for_driver", "config/num_threads_per_worker", "config/custom_resources_per_worker"),
    *("config/max_num_worker_restarts", "config/sample_timeout_s", "config/replay_storage", "config/debug"),
    *("config/evaluation_interval", "config/evaluation_num_episodes", "config/monitor"),
    *("config/checkpoint_replay", "config/board"),
)

CHANGEABLE: Final = frozenset(
    {
        *_WHAT_IT_RUNS_ON,
        *("stop", "time_budget_s", "restore", "search"),
        *("config/timesteps_per_iteration", "config/min_iter_time_s", "config/metrics_smoothing_episodes"),
    }
)
"""Keys of a trial that can change: when it ends, what it runs on and what it reports."""

_NOTHING: Final = "nothing"

CHANGEABLE_IN_SWEEPS: Final = frozenset(
    {
        *_WHAT_IT_RUNS_ON,
        *("search/num_samples", "search/max_concurrent", "search/time_budget_s", "search/hang_timeout_s"),
    }
)
"""Keys of a sweep that can change: how much is tried, and on what it runs. All other keys are equal in all trials."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any], changeable: Collection[str]) -> Iterator[str]:
    """Yield the keys that differ between two experiments and are not ``changeable``: ``lr 0.1 → 0.2``.

    A key that only one of them has was unknown to the version that wrote the other, unless the user chose its name.
    """
    old, new = flatten(before), flatten(now)
    keys = old.keys() | new.keys()
    for key in sorted(keys):
        is_known = (key in old and key in new) or _is_free(key) or _is_below(key, keys)
        is_same = old.get(key, _NOTHING) == new.get(key, _NOTHING)
        if is_known and not is_same and not any(f"{key}/".startswith(f"{name}/") for name in changeable):
            shown = (masked({key: values[key]})[key] if key in values else _NOTHING for values in (old, new))
            yield f"{key_as_typed(key)} {' → '.join(map(str, shown))}"


def _is_free(key: str) -> bool:
    """Return whether a flat key is an argument, whose name the user chose: of an env, a sampler or a class."""
    return any(part in {"env_config", "sampler_kwargs"} or ":" in part for part in key.split("/"))


def _is_below(key: str, values: Collection[str]) -> bool:
    """Return whether a flat key is inside of what is one value in the other experiment, such as null."""
    return any(key[:end] in values for end, letter in enumerate(key) if letter == "/")


def refuse_changes_of(overrides: Sequence[str], fixed: Iterable[str], where: Path) -> None:
    """Raise ResumeError if an override sets a key in which the trials of ``where`` differ, such as the seed."""
    keys = sorted(fixed)
    for text in overrides:
        key = text.partition("=")[0].strip().removeprefix("config.")
        for name in keys:
            if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}."):
                given = shown_override(text)
                message = f"{given}: {name} cannot change when {where} is resumed, because its trials differ in it"
                raise ResumeError(message, what_can_change(CHANGEABLE))


def what_can_change(changeable: Collection[str]) -> str:
    """Return a hint with the keys that can change."""
    return f"only these keys can change: {', '.join(sorted(map(key_as_typed, changeable)))}; rlexp run starts a new run"


def key_as_typed(key: str) -> str:
    """Return a key as in files and ``-o``: ``model.fcnet_hiddens`` for ``config/model/fcnet_hiddens``."""
    return key.removeprefix("config/").replace("/", ".").rstrip("_")  # lambda_ in Python is lambda
