"""The result of a run: the summary of its trials, or the leaderboard of a sweep, and the next commands.

Displays print it at the end of a run; the live one has the leaderboard while it lasts.
"""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from rlexp.config.keys.search import TimeAttribute
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.directories import as_typed
from rlexp.runs.record import RunRecord, Status, TrialRecord
from rlexp.search.ranking import RULE, SCORE_RULE, Standing, Tier, TrialStanding, surest
from rlexp.search.record import BEST_FILE
from rlexp.search.standings import Standings, summary_of
from rlexp.terminal.lines import aligned, in_a_cell
from rlexp.text import (
    MISSING,
    count,
    duration,
    first_of,
    middle_cut,
    one_line,
    percent,
    score,
    score_at,
    value_words,
    wrapped,
)

_HEADER: Final = ("", "status", "iter", "env steps", "time", "reward", "best", "trial")
_LEFT_ALIGNED: Final = frozenset({"", "status"})
_USUAL_METRIC: Final = "episode_reward_mean"
"""The default metric of ``rlexp compare``."""
_NOT_SAVED: Final = (
    "the trained policy was not saved: checkpoint_at_end is false",
    "to save it the next time: -o checkpoint_at_end=true",
)
_REPORT_FILE: Final = "report.html"
_SHORTEST_NAME: Final = 18
_VERBS: Final = {
    Status.TERMINATED: "finished",
    Status.PRUNED: "ended early",
    Status.STOPPED: "stopped",
    Status.ERROR: "failed",
}


def summary_lines(
    run: RunRecord, run_directory: Path, standings: Standings | None = None, columns: int | None = None
) -> list[str]:
    """Return the summary as plain lines; for a sweep, the configurations by rank."""
    shown = as_typed(run_directory)
    if standings is not None:
        heading = f"{shown}: {run.status}, by {standings.search.metric} ({standings.search.mode})"
        body = [heading, *leaderboard_lines(standings, columns)]
        return [*body, *_not_saved(run), "", *_next_of_sweep(run, shown, standings)]
    return [
        f"{shown}: {run.status}",
        *_table(run.trials, columns),
        *(wrapped(reason, columns, "  ") for reason in _reasons(run.trials, run_directory, shown)),
        *_best_checkpoint(run, shown),
        *_not_saved(run),
        "",
        *_next_steps(run, shown),
    ]


def _table(trials: Sequence[TrialRecord], limit: int | None) -> Iterator[str]:
    best = _best_trials(trials)
    rows = [_HEADER, *(_cells(trial, "best" if trial in best else "") for trial in trials)]
    # The first column has the mark of the best trial; it is empty if no trial has one.
    rows = rows if best else [row[1:] for row in rows]
    if limit is not None:
        others = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1])
        room = max(limit - others, _SHORTEST_NAME)
        rows = [rows[0], *((*row[:-1], middle_cut(row[-1], room)) for row in rows[1:])]
    to_the_right = {place for place, title in enumerate(rows[0][:-1]) if title not in _LEFT_ALIGNED}
    return aligned(rows, to_the_right)


def _cells(trial: TrialRecord, mark: str) -> tuple[str, ...]:
    return (
        mark,
        trial.status,
        count(trial.iterations),
        count(trial.timesteps_total),
        duration(trial.time_total_s),
        score(trial.episode_reward_mean),
        score(trial.best_episode_reward_mean),
        trial.directory,
    )


def _best_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trial with the highest mean reward of each environment that several trials play."""
    best = []
    for env in dict.fromkeys(trial.env for trial in trials):
        same = [trial for trial in trials if trial.env == env]
        known = [trial for trial in same if trial.best_episode_reward_mean is not None]
        if len(same) > 1 and known:
            best.append(max(known, key=lambda trial: trial.best_episode_reward_mean or 0.0))
    return best


def _reasons(trials: Sequence[TrialRecord], run_directory: Path, shown: Path) -> list[str]:
    """Return why trials ended; trials with the same reason share a line."""
    names: dict[str, list[str]] = {}
    for trial in trials:
        if trial.status in _VERBS:
            names.setdefault(_reason(trial, run_directory, shown), []).append(trial.name)
    lines = []
    for reason, same in names.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(reason if len(trials) == 1 else f"{same[0]}{more} {reason}")
    return first_of(lines, ", in run.json")


def _reason(trial: TrialRecord, run_directory: Path, shown: Path) -> str:
    if trial.error is not None:
        where = f" (traceback: {shown / trial.error.traceback})" if trial.error.traceback else ""
        said = f"{one_line(trial.error.summary)}{where}"
    elif trial.status is Status.STOPPED:
        said = _kept(trial, run_directory / trial.directory)
    else:
        said = one_line(trial.reason or "")
    verb = _VERBS[trial.status]
    return f"{verb}: {said}" if said else verb


def _kept(trial: TrialRecord, directory: Path) -> str:
    """Return what is left of a stopped trial, and from where it can be resumed."""
    if not trial.iterations:
        return "it had no result yet"
    checkpoints = list_checkpoints(directory)
    if not checkpoints:
        return f"iteration {trial.iterations}, no checkpoint: resume starts it from the beginning"
    return f"resume continues from {checkpoints[0].name}"


def _best_checkpoint(run: RunRecord, run_directory: Path) -> Iterator[str]:
    known = [trial for trial in run.trials if trial.best_checkpoint is not None]
    if known:
        best = max(known, key=lambda trial: trial.rank_of_checkpoint)
        yield f"best checkpoint: {run_directory / str(best.best_checkpoint)}"


def _not_saved(run: RunRecord) -> Iterator[str]:
    if any(trial.status is Status.TERMINATED and trial.best_checkpoint is None for trial in run.trials):
        yield from _NOT_SAVED


def _next_steps(run: RunRecord, run_directory: Path) -> list[str]:
    directory = shlex.quote(str(run_directory))
    steps = []
    if any(trial.status is Status.ERROR for trial in run.trials):
        steps.append(f"correct what failed, then: rlexp resume {directory}")
    elif any(trial.status is Status.STOPPED for trial in run.trials):
        steps.append(f"rlexp resume {directory}")
    if any(trial.best_checkpoint for trial in run.trials):
        steps.append(f"rlexp evaluate {directory}")
    if len(run.trials) > 1:
        steps.append(f"rlexp compare {directory}")
    steps.append(f"rlexp tensorboard {directory}")
    return _numbered(steps)


def _next_of_sweep(run: RunRecord, run_directory: Path, standings: Standings) -> list[str]:
    directory = shlex.quote(str(run_directory))
    metric = standings.search.metric
    by = "" if metric == _USUAL_METRIC else f" --metric {metric}"
    steps = [f"rlexp compare {directory}{by} --html {directory}/{_REPORT_FILE}", f"rlexp tensorboard {directory}"]
    if standings.best() is not None:
        steps.insert(0, f"rlexp run {directory}/{BEST_FILE}")
    if run.status is Status.STOPPED:
        steps.insert(0, f"rlexp resume {directory}")
    if any(trial.best_checkpoint for trial in run.trials):
        steps.append(f"rlexp evaluate {directory}")
    return _numbered(steps)


def _numbered(steps: list[str]) -> list[str]:
    return [f"{'next:' if number == 0 else '':5} {step}" for number, step in enumerate(steps)]


_RANKED_HEADER: Final = ("rank", "score", "95 % interval", "steps", "status", "configuration")
_EARLY_HEADER: Final = ("rank", "value where it ended", "rank 1 there", "status", "configuration")
"""Header for configurations that did not complete."""
_TIME_UNITS: Final[Mapping[TimeAttribute, str]] = {"training_iteration": "iterations", "time_total_s": "s"}
"""Units shown after a time that is not in env steps."""
_RULE_WIDTH: Final = 79
_INDENT: Final = " " * len("rank  ")
"""Indentation of a configuration that needs several lines: its values are below its figures, not below its rank."""
_MOST_LINES: Final = 10
"""Most configurations in the final lines of a sweep; ``trials.csv`` has all."""
_LIVE_HEADER: Final = ("", "score", "seeds", "steps", "status", "configuration")
_STYLES: Final[Mapping[Status, str]] = {Status.RUNNING: "cyan", Status.ERROR: "red", Status.PRUNED: "dim"}


def leaderboard(standings: Standings, headline: str, width: int, height: int) -> Text:
    """Return at most ``height`` lines of at most ``width`` cells: the present ranking, the best first."""
    standings = standings.confirmation or standings
    ranked = standings.ranked()
    counts = status_counts(trial.status for trial in standings.trials()) or "none"
    begun = f"{len(ranked)} of {standings.number_of_configurations} configurations started"
    metric = f"{standings.search.metric}, {standings.search.mode}"
    foot = Text(f"{begun}; trials: {counts}; by {metric}", "dim")
    room = max(height - 3, 0)
    shown = list(enumerate(ranked, start=1)) if len(ranked) <= room else _with_running(ranked, room - 1)
    rows = [_live_cells(standing, rank, standings) for rank, standing in shown]
    table = _styled_table(_LIVE_HEADER, rows, [standing.status for _, standing in shown], width)
    if len(shown) < len(ranked):
        table.append(Text(f"… and {len(ranked) - len(shown)} more", "dim"))
    return fitted([Text(headline, style="bold"), *table, foot], width, height)


def fitted(lines: Sequence[Text], width: int, height: int) -> Text:
    """Return the first ``height`` lines, each cut to ``width`` cells."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[:height])


def status_counts(statuses: Iterable[Status]) -> str:
    """Return the number of trials by status: ``2 pending, 1 running``; statuses without trials are left out."""
    counts = Counter(statuses)
    return ", ".join(f"{counts[status]} {status.lower()}" for status in Status if counts[status])


def leaderboard_lines(standings: Standings, columns: int | None = None) -> list[str]:
    """Return the best configurations, the sweep's cost, and a table of failures, as plain lines."""
    ranked = standings.ranked()
    shown = list(enumerate(ranked[:_MOST_LINES], start=1))
    completed = [_ranked_cells(standing, rank) for rank, standing in shown if standing.tier <= Tier.RUNNING]
    others = [_early_cells(standing, rank, standings) for rank, standing in shown if standing.tier > Tier.RUNNING]
    tables = _plain_table([_RANKED_HEADER, *completed]) if completed or not others else []
    tables += ["", *_plain_table([_EARLY_HEADER, *others])] if others else []
    lines = [wrapped(line, columns, _INDENT) for line in tables]
    if len(ranked) > _MOST_LINES:
        lines.append(f"… and {len(ranked) - _MOST_LINES} more, in trials.csv")
    rule = textwrap.wrap(SCORE_RULE.format(metric=standings.search.metric), _RULE_WIDTH)
    below = [wrapped(line, columns, "    ") for line in (*_summary_lines(standings), *_failure_lines(standings))]
    lines += [RULE, *rule, *below]
    if standings.confirmation is None:
        return lines
    return [*lines, *(wrapped(line, columns, _INDENT) for line in _confirmation_lines(standings.confirmation))]


def _confirmation_lines(standings: Standings) -> list[str]:
    """Return the best configurations with other seeds, and which of them is in ``best.yaml``."""
    rows = [_ranked_cells(standing, rank) for rank, standing in enumerate(standings.ranked(), start=1)]
    best = surest(standings.ranked(), standings.search)
    end = "lowest upper" if standings.search.mode == "min" else "highest lower"
    chosen = "none completed" if best is None else configuration_words(best.varied)
    heading = f"the best again, with {standings.search.num_seeds} other seeds each:"
    said = f"best.yaml, by the {end} end of the intervals: {chosen}"
    return ["", heading, *_plain_table([_RANKED_HEADER, *rows]), said, *_failure_lines(standings)]


def standings_as_json(standings: Standings) -> list[dict[str, Any]]:
    """Return the configurations, the best first, for a program."""
    return [
        {
            "rank": rank,
            "configuration": standing.configuration,
            "point": dict(standing.varied),
            "status": standing.status,
            "score": standing.score if standing.ended_early is None else None,
            "interval": standing.interval,
            "ended_early": None if (end := standings.end_comparison(standing)) is None else asdict(end),
            "trials": [trial.trial.name for trial in standing.trials],
        }
        for rank, standing in enumerate(standings.ranked(), start=1)
    ]


def configuration_words(varied: Mapping[str, Any]) -> str:
    """Return a configuration on one line: ``lr=0.001 n_step=3``."""
    return in_a_cell(" ".join(f"{key}={value_words(value)}" for key, value in varied.items()))


def _failure_lines(standings: Standings) -> list[str]:
    failures, refused = standings.failures(), standings.refused
    if not failures and not refused:
        return []
    begun = len(standings.trials())
    lines = ["", f"{len(failures)} of {begun} trials failed:"] if failures else [""]
    width = max((len(_short_name(each)) for each in failures), default=0)
    whys = (f"after {count(each.timesteps_total)} steps: {one_line(each.error or '')}" for each in failures)
    shown = [f"  {_short_name(each).ljust(width)}  {why}" for each, why in zip(failures, whys, strict=True)]
    lines += first_of(shown, ", in trials.csv")
    could_not = [f"  configuration {number} is not possible: {one_line(why)}" for number, why in refused.items()]
    return lines + first_of(could_not, ", in sweep.json")


def _short_name(trial: TrialStanding) -> str:
    return f"{trial.trial.index:05d} {configuration_words(trial.trial.varied)}"


def _with_running(ranked: Sequence[Standing], room: int) -> list[tuple[int, Standing]]:
    """Return the best ones, then running ones, as many as fit; each with its rank."""
    ranks = [rank for rank, standing in enumerate(ranked, start=1) if standing.status is Status.RUNNING]
    running = set(ranks[: max(room // 2, 0)])
    best = [rank for rank in range(1, len(ranked) + 1) if rank not in running][: max(room - len(running), 0)]
    return [(rank, ranked[rank - 1]) for rank in sorted([*best, *running])]


def _live_cells(standing: Standing, rank: int, standings: Standings) -> tuple[str, ...]:
    done = sum(trial.status not in (Status.PENDING, Status.RUNNING) for trial in standing.trials)
    steps = count(max(trial.timesteps_total for trial in standing.trials))
    words = configuration_words(standing.varied)
    end = standings.end_comparison(standing)
    value = _score(standing) if end is None else score_at(end.value, end.at, unit=_TIME_UNITS.get(end.unit, ""))
    return str(rank), value, f"{done}/{len(standing.trials)}", steps, standing.status.lower(), words


def _ranked_cells(standing: Standing, rank: int) -> tuple[str, ...]:
    interval = MISSING if standing.interval is None else "[{}, {}]".format(*map(score, standing.interval))
    steps = count(max(trial.timesteps_total for trial in standing.trials))
    return str(rank), _score(standing), interval, steps, standing.status, configuration_words(standing.varied)


def _early_cells(standing: Standing, rank: int, standings: Standings) -> tuple[str, ...]:
    end, value, there = standings.end_comparison(standing), MISSING, MISSING
    if end is not None:
        value = score_at(end.value, end.at, end.of, _TIME_UNITS.get(end.unit, ""))
        there = score(end.rank_1_value)
    return str(rank), value, there, standing.status, configuration_words(standing.varied)


def _summary_lines(standings: Standings) -> list[str]:
    """Return the sweep's cost, the savings by early ends, and when the best configuration was found."""
    summary, best = summary_of(standings), standings.best()
    if not summary.configurations:
        return []
    early = f"{summary.ended_early} ended early ({percent(summary.ended_early / summary.configurations)})"
    took = f"{count(summary.env_steps)} env steps, {duration(summary.time_s)} of training in all trials"
    lines = ["", f"{summary.configurations} configuration{'s' * (summary.configurations > 1)}, {early}; {took}"]
    if summary.env_steps_saved is not None:
        saved = f"{count(summary.env_steps_saved)} env steps, {duration(summary.time_saved_s)}"
        lines.append(f"saved: about {saved} (an estimate: against all of them running to the stop)")
    if best is None and not standings.failures():
        lines.append(
            f"no trial has a value of {standings.search.metric}, so none has a score: give the sweep more time"
        )
    if best is not None and summary.best_found_after_s is not None:
        after = f"{duration(summary.best_found_after_s)} and {count(summary.best_found_after_env_steps)} env steps"
        values = configuration_words(best.varied) or "the only configuration"
        lines.append(f"best: {values}, found after {after} of the sweep")
    if best is not None and len(standings.ranked()) > 1:
        steps = count(max(trial.timesteps_total for trial in best.trials))
        lines.append(f"this ranking is for a budget of {steps} env steps: with more, another configuration may be best")
    return lines


def _score(standing: Standing) -> str:
    if standing.score is not None:
        return score(standing.score)
    known = [each for each in standing.scores if each is not None]
    return f"({score(sum(known) / len(known))})" if known and not standing.failed else MISSING


def _plain_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines whose last column, the configurations, is not padded."""
    return list(aligned(rows, range(len(rows[0]) - 1)))


def _styled_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], statuses: Sequence[Status], width: int
) -> list[Text]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)][:-1]
    room = max(width - sum(widths) - 2 * len(widths), 1)
    first, *lines = _plain_table([header, *((*row[:-1], middle_cut(row[-1], room)) for row in rows)])
    styled = [Text(line, _STYLES.get(status, "")) for line, status in zip(lines, statuses, strict=True)]
    return [Text(first, "dim"), *styled]
