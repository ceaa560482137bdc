"""``rlexp prune``: removes checkpoints that nothing needs any more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlexp.commands.completion import complete_run
from rlexp.commands.numbers import whole
from rlexp.commands.output_options import AsJson, Debug


def prune(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Runs.", show_default=False, autocompletion=complete_run)
    ],
    keep: Annotated[int, whole("--keep", "N", "Newest checkpoints of each trial that stay.", 1)] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove the checkpoints of runs, except the newest and the best.

    Of each trial the newest N stay, and the best one, which evaluate plays. A run that is in use is refused, and
    then nothing is removed.
    """
    from rlexp.runs.checkpoints import kept
    from rlexp.terminal.listings import print_pruned

    found = [kept.superseded_in(run, keep) for run in dict.fromkeys(runs)]
    if not dry_run:
        found = [kept.prune(each.run, keep) for each in found]
    print_pruned(found, dry_run, as_json)
