"""``rlexp sweep``: refuses what cannot run before anything is created, searches, reports what was found."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import uuid4

from rlexp.config.load import Plan, resolved_yaml
from rlexp.config.plan import only_sweep
from rlexp.config.sweep import Sweep
from rlexp.display import Display
from rlexp.machine import Cluster
from rlexp.machine.room import number_that_fit
from rlexp.processes.signals import StopRequest
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.run_name import usual_name
from rlexp.runs.secrets import has_secrets, masked
from rlexp.search.confirmation import ConfirmedSearch
from rlexp.search.journal import Heading, Journal, read_heading, study_member
from rlexp.search.search import Search
from rlexp.search.searchers import make_searcher, require_searcher
from rlexp.search.state import SearchState
from rlexp.trackers import Trackers
from rlexp.tuning.joining import make_session
from rlexp.tuning.run import RunOptions, cluster_for, run_in_session


def run_sweep(plan: Plan, options: RunOptions, display: Display, allow_failures: int) -> int:
    """Search the space of the plan's only sweep; return the exit code.

    Raises ResourceError or UsageError, with nothing created, where its trials cannot run here.
    """
    sweep = only_sweep(plan)
    require_searcher(sweep, Path.cwd())
    cluster = cluster_for(plan, plan.everything, display, options)
    name = usual_name(plan)
    with (
        StopRequest(display.on_stop_request) as request,
        Trackers.started(plan.everything, options.out, display) as trackers,
        RunDirectory.create(options.out, name, options.name, options.command, overwrite=options.overwrite) as directory,
        begun_journal(plan, directory, allow_failures) as journal,
    ):
        directory.trackers = trackers
        state = SearchState(sweep, make_searcher(sweep, study_member(directory.path)))
        display.follow(state.standings)
        session = make_session(cluster, plan, options)
        with closing(confirmed_search(state, directory, journal, capacity(sweep, cluster))) as source:
            return run_in_session(source, [], directory, display, request, session)


def begun_journal(plan: Plan, directory: RunDirectory, allow_failures: int) -> Journal:
    """Write into a new directory all that a later resume of the sweep needs; return its journal.

    ``run.json`` comes last: a directory that has it can be resumed.
    """
    if has_secrets(plan.experiments[0].resolved):
        directory.keep_private()
    texts = [source.read_text(encoding="utf-8") for source in plan.sources]
    directory.write_experiments(texts, resolved_yaml(plan))
    journal = Journal(directory.path)
    experiment = masked(plan.experiments[0].resolved)
    keys = list(only_sweep(plan).space.keys)
    journal.head(Heading(keys, experiment, allow_failures, uuid4().hex, str(Path.cwd())))
    directory.start([], plan.modules)
    return journal


def confirmed_search(state: SearchState, directory: RunDirectory, journal: Journal, capacity: int) -> ConfirmedSearch:
    """Return the search of a sweep, of which ``capacity`` trials run at a time, with its confirmation."""
    heading = read_heading(directory.path)

    def make_search(state: SearchState, journal: Journal) -> Search:
        return Search(state, directory, journal, capacity, heading.allow_failures)

    return ConfirmedSearch(make_search(state, journal), state, directory.path, heading, make_search)


def capacity(sweep: Sweep, cluster: Cluster) -> int:
    """Return how many trials are to run at a time: as many as there is room for, or as asked for if fewer.

    A trial that was begun where there is no room would count as running, and other seeds would not wait for it.
    """
    room = max(max(number_that_fit(experiment, cluster) for experiment in sweep.variants), 1)
    return min(room, sweep.search.max_concurrent or room)
