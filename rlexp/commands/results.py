"""Commands that show results of runs, and what can be written into experiment files.

Each imports what it needs when it is called, so most of them answer at once.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from rlexp.commands.command import DEFAULT_OUT, MOST, argument, duration, option, real, whole
from rlexp.commands.completion import complete_name, complete_run
from rlexp.commands.options import AllowClass, AllowEnv, AllowStorage, AsJson, Debug, ImportsOfRun, trusted_code
from rlexp.errors import Notice, UsageError
from rlexp.files import refuse_other_than_file
from rlexp.schedules import LARGEST_SEED
from rlexp.terminal.results import EvaluationProgress, print_evaluation, print_export

AxisName = StrEnum("AxisName", ["steps", "time"])
"""The names of CurveAxis, which comes with NumPy: commands that compare nothing do not load it."""
CheckpointPath = Annotated[Path, argument("PATH", "A run, a trial or a checkpoint.", complete_run)]


def explain(
    key: Annotated[
        str | None, argument("NAME", "A key, a metric, an agent, or grid_search, asha, uniform ...", complete_name)
    ] = None,
    debug: Debug = False,
) -> None:
    """Explain a key, a metric, a sampler, a searcher or a scheduler.

    For a key, print what it does, its values, its default for each agent, and its other spellings. Without a name, or
    with an agent's name, list all keys with their defaults.
    """
    from rlexp.terminal.explanations import print_explanation

    print_explanation(key)


def schema() -> None:
    """Print the JSON Schema of experiment files, for editors."""
    from rlexp.config.reference.json_schema import experiment_schema

    print(json.dumps(experiment_schema(), indent=1))


_POLICY_FILE: Final = "policy.onnx"
_NEEDED: Final = ("onnx", "onnxscript", "onnxruntime")
"""Modules of the extra ``[onnx]``."""


def export(
    path: CheckpointPath,
    onnx: Annotated[
        Path | None, option("--onnx FILE", f"The file to write. Default: {_POLICY_FILE} beside the checkpoint.")
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace FILE if it exists.")] = False,
    imports: ImportsOfRun = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    allow_storage: AllowStorage = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write the greedy policy of a checkpoint to an ONNX file.

    It needs rlexp[onnx]. For a run or a trial, its best checkpoint is used. The policy includes the observation filter,
    and its actions are what the env takes. Before the file is written, it is compared with the checkpoint on 1000
    observations. Modules and classes that you have not trained with have to be allowed.
    """
    _require_extra()
    if onnx is not None:
        _check_target(onnx, overwrite)
    from rlexp.runs.directories import as_typed
    from rlexp.runs.kept_checkpoints import find_checkpoint

    trusted = trusted_code(imports, allow_env, allow_class, allow_storage)
    checkpoint = find_checkpoint(path, trusted)
    file = checkpoint.parent / _POLICY_FILE if onnx is None else onnx
    _check_target(file, overwrite)
    # Before PyTorch and ONNX are imported, and the model is traced and checked, which take seconds.
    print(f"exporting {as_typed(checkpoint)} to {as_typed(file)} ...", file=sys.stderr, flush=True)
    from rlexp.agents.export.export import export_checkpoint

    print_export(export_checkpoint(checkpoint, file, trusted), as_json)


def _require_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"export needs {' and '.join(missing)}, which {verb} not installed", "pip install 'rlexp[onnx]'"
        )


def _check_target(file: Path, overwrite: bool) -> None:
    """Raise UsageError if a file cannot be written: before a checkpoint is read for it."""
    try:
        refuse_other_than_file(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", "name a file, for example policy.onnx") from error
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}", "create it, or name a file elsewhere")
    if file.exists() and not overwrite:
        raise UsageError(f"{file} exists", "--overwrite replaces it")


def prune(
    runs: Annotated[list[Path], argument("RUN", "Runs.", complete_run)],
    keep: Annotated[int, whole("--keep N", "Newest checkpoints of each trial that stay.", 1)] = 3,
    dry_run: Annotated[bool, option("--dry-run", "Only print what would be removed.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove the checkpoints of runs, except the newest and the best.

    Each trial keeps its newest N checkpoints and the best one, which evaluate plays. A run that is in use is refused,
    and then nothing is removed.
    """
    from rlexp.runs import kept_checkpoints
    from rlexp.terminal.results import print_pruned

    found = [kept_checkpoints.superseded_in(run, keep) for run in dict.fromkeys(runs)]
    if not dry_run:
        found = [kept_checkpoints.prune(each.run, keep) for each in found]
    print_pruned(found, dry_run, as_json)


def evaluate(
    path: CheckpointPath,
    episodes: Annotated[
        int | None,
        whole("--episodes N", "Number of episodes; default: evaluation_num_episodes of the run, or 20.", 1, 10**9),
    ] = None,
    seed: Annotated[
        int | None, whole("--seed N", "Seed of the envs; default: the seed of the run's evaluation.", 0, LARGEST_SEED)
    ] = None,
    explore: Annotated[
        bool | None, option("--explore/--greedy", "Explore or act greedily; default: as evaluation_config says.")
    ] = None,
    timeout_s: Annotated[float | None, duration("--timeout", "Stop after 90s, 30m or 2h.")] = None,
    video: Annotated[
        Path | None, option("--video DIR", "Record a video of one more episode in DIR; needs rlexp[video].")
    ] = None,
    imports: ImportsOfRun = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    allow_storage: AllowStorage = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Play episodes with a checkpoint and print their returns.

    For a run or a trial, its best checkpoint is used. The episodes are played as in the run's own evaluation, by
    evaluation_config: greedy by default. Modules and classes that you have not trained with have to be allowed.
    """
    from rlexp.runs.kept_checkpoints import find_checkpoint

    trusted = trusted_code(imports, allow_env, allow_class, allow_storage)
    checkpoint = find_checkpoint(path, trusted)
    from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint, film_checkpoint_to

    request = EvaluationRequest(episodes, seed, explore, timeout_s, trusted)
    film = None if video is None else film_checkpoint_to(video, checkpoint, request)
    with EvaluationProgress(sys.stderr, path, timeout_s) as progress:
        evaluation = evaluate_checkpoint(checkpoint, request, progress.report)
    print_evaluation(evaluation, film, as_json)


def logs(
    paths: Annotated[list[Path], argument("PATH", "Event files, or directories that contain some.", complete_run)],
    tags: Annotated[
        list[str] | None, option("--tag GLOB", "Only tags (or last parts of tags) that match; repeatable.")
    ] = None,
    at: Annotated[int | None, whole("--at STEP", "Only the last point at or before STEP.", -MOST)] = None,
    as_csv: Annotated[bool, option("--csv", "Print every point: run,tag,step,wall_time,value.")] = False,
    as_json: Annotated[bool, option("--json", "Print JSON lines, one per tag, with every point.")] = False,
    all_tags: Annotated[bool, option("--all", "Print all tags, also more than the terminal has lines for.")] = False,
    follow: Annotated[bool, option("--follow", "Also print new points as they are written, until Ctrl-C.")] = False,
    debug: Debug = False,
) -> None:
    """Print TensorBoard event files as tables, CSV or JSON.

    The table has the last and highest value, the slope and a curve of every tag; a terminal shows the tags that fit it,
    and the run that was written last comes last. Event files may be from any framework; the files of one directory are
    one run. The slope is computed over the last tenth of the points (at least ten), per 1000 steps. All points are
    read, except those that a resumed run replaced.
    """
    from rlexp.terminal.logs import LogOptions, print_logs

    print_logs(paths, LogOptions(tags or (), at, as_csv, as_json, follow, all_tags))


def compare(
    groups: Annotated[
        list[str], argument("PATH", "Runs or trials; NAME=PATH[,PATH...] makes one group of them.", complete_run)
    ],
    metric: Annotated[str, option("--metric NAME", "Metric to compare.")] = "episode_reward_mean",
    by: Annotated[AxisName, option("--by", "Align runs by env steps or by wall time.")] = AxisName.steps,
    at: Annotated[
        float | None, real("--at N", "Compare all trials at N env steps (--by time: seconds), not at their end.", 1)
    ] = None,
    goal: Annotated[float | None, real("--goal X", "Also print when the metric reached X.", -MOST)] = None,
    html: Annotated[Path | None, option("--html FILE", "Write a report as a single HTML file.")] = None,
    png: Annotated[Path | None, option("--png FILE", "Write the curves as a PNG; needs rlexp[plot].")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs over their seeds, with intervals and curves.

    Trials of a run that differ only in their seeds are one group; each variant of a grid is a group.
    Final scores are means over the last tenth of the steps that all completed trials have. Trials that
    ended earlier or failed are listed below. A sweep keeps the scores and the order of its own ranking.
    """
    from rlexp.compare.comparison import compare_groups
    from rlexp.compare.curve import CurveAxis
    from rlexp.terminal.comparison import export_comparison, print_comparison

    comparison = compare_groups(groups, metric, CurveAxis(by), goal, at)
    export_comparison(comparison, html, png)
    print_comparison(comparison, as_json)


def ls(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", envvar="RLEXP_OUT", help="A directory of runs, or one run.", autocompletion=complete_run
        ),
    ] = DEFAULT_OUT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List runs, newest first, or the trials of one run.

    RUNNING: a process holds its lock. KILLED: it was running, but its process is gone. DAMAGED: its
    run.json cannot be read. Steps and iterations are sums over all trials.
    """
    from rlexp.compare.run_listing import found_at
    from rlexp.terminal.lines import print_notice_list
    from rlexp.terminal.results import print_found

    left_out: list[Notice] = []
    found = found_at(path, left_out.append)
    print_notice_list(left_out, "")
    print_found(found, path, as_json)


def tensorboard(
    path: Annotated[Path, argument("PATH", "A run, a trial, or a directory of runs.", complete_run)],
    port: Annotated[int | None, whole("--port N", "Port; 0 takes any free one.", 0, 65535)] = None,
    host: Annotated[str, option("--host H", "Address to listen at; 0.0.0.0 allows other machines.")] = "127.0.0.1",
    debug: Debug = False,
) -> None:
    """Start TensorBoard on a run, for this machine only.

    Ctrl-C ends it.
    """
    from rlexp.compare.tensorboard_server import run_tensorboard
    from rlexp.terminal.results import print_address

    raise typer.Exit(run_tensorboard(path, host, port, announce=print_address))
