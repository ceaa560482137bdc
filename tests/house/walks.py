"""The straight walks of docs/architecture.md, traced: which functions of rlexp the real thing enters, in which order.

``python -m tests.house.walks`` prints them, with how often each file was come back to. Everything runs in this process:
the trial's process is an object here, its workers and shards are in an inline pool, and the board is that of the tests.
What needs processes of its own is a station without a function: the page marks it with ``*``.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import NamedTuple

import pytest

import rlexp
from rlexp.board.actor.joiner import Joiner
from rlexp.board.actor.trainer import TaskTrainer, TrainerLimits, TrainingOptions
from rlexp.board.client.run import RunPlace
from rlexp.board.client.submit import SubmitOptions, Submitter
from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.credentials import password_keys
from rlexp.board.servers import OPENERS, open_board
from rlexp.board.servers.board import Board, Lead
from rlexp.commands.submit import checked_plan
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.processes.signals import StopRequest
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT, assignment_of
from rlexp.tuning.trainable import ExperimentTrainable
from rlexp.tuning.tune_callbacks import TrialEvents
from rlexp.tuning.tune_runner import placement
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.agents import ONE_SHARD, TINY, CountingPool
from tests.lab.board import EXPERIMENT, ToldTrainer, result_row
from tests.lab.memory_board import open_memory_board

PACKAGE = f"{Path(rlexp.__file__).parent}{os.sep}"
ITERATIONS = 3
MOST_ITERATIONS = 200
"""Until a trial has seen that it is to stop: it looks for that some times a second."""


class Station(NamedTuple):
    """A file of a walk, and the function by which the walk enters it; without one it is not traced."""

    file: str
    function: str = ""


WALKS: Mapping[str, Sequence[Station]] = {
    "num_workers": (
        Station("config/keys/common_keys.py"),
        Station("config/validation.py", "validated"),
        Station("tuning/tune_runner.py", "placement"),
        Station("config/keys/trial.py", "bundles_of"),
        Station("tuning/trainable.py", "ExperimentTrainable.begin"),
        Station("agents/workers.py", "place_workers"),
        Station("rollout/fleet.py", "Fleet.__init__"),
        Station("cluster/pool/ray_pool.py"),
        Station("rollout/worker.py", "RolloutWorker.__init__"),
    ),
    "observation to gradient": (
        Station("envs/make.py", "make_vector_env"),
        Station("optimizers/async_replay_optimizer.py", "AsyncReplayOptimizer.step"),
        Station("rollout/worker.py", "RolloutWorker.sample"),
        Station("rollout/recorder.py", "FragmentRecorder.record"),
        Station("rollout/folds.py", "FragmentAccumulator.push"),
        Station("replay/shard.py", "ReplayShard.add_batch"),
        Station("optimizers/learner_thread.py", "LearnerThread.put"),
        Station("agents/dqn/learner.py", "DQNLearner.learn_on_batch"),
        Station("agents/dqn/dense_loss.py", "DenseGradient.compute"),
    ),
    "weights": (
        Station("agents/dqn/learner.py", "DQNLearner.get_weights"),
        Station("optimizers/pacing.py", "WeightPublisher.publish"),
        Station("optimizers/learner_thread.py", "LearnerRunner.latest_weights"),
        Station("rollout/remote_workers.py", "RemoteWorkers.publish"),
        Station("rollout/shared_weights.py", "SharedWeights.publish"),
        Station("rollout/worker.py", "RolloutWorker.set_weights"),
        Station("rollout/recorder.py", "FragmentRecorder.set_weights"),
        Station("agents/dqn/policy.py", "DQNPolicy.set_weights"),
        Station("models/dense.py", "NumpyQNetwork.load"),
    ),
    "row to TensorBoard": (
        Station("tuning/trainable.py", "ExperimentTrainable.step"),
        Station("agents/agent.py", "Agent.train"),
        Station("agents/iteration.py", "IterationReport.row"),
        Station("tuning/tune_callbacks.py", "TrialEvents.on_result"),
        Station("runs/recorders.py", "TrialRecorder.record"),
        Station("runs/tensorboard.py", "TensorBoardRecorder.record"),
        Station("runs/rows.py", "scalars"),
    ),
    "Ctrl-C": (
        Station("processes/signals.py", "StopRequest._handle"),
        Station("runs/trial_files.py", "requests_of"),
        Station("agents/agent.py", "Agent.save"),
        Station("runs/checkpoints.py", "write_checkpoint"),
        Station("tuning/tune_callbacks.py", "TrialEvents.on_result"),
        Station("runs/run_directory.py", "RunDirectory.trial_status"),
        Station("cluster/session.py"),
        Station("tuning/run.py"),
        Station("commands/answers.py"),
    ),
    "submit to result": (
        Station("commands/submit.py", "checked_plan"),
        Station("config/load.py", "load_plan"),
        Station("board/client/submit.py", "Submitter.submit"),
        Station("board/servers/redis.py"),
        Station("board/actor/joiner.py", "Joiner.run"),
        Station("board/actor/trainer.py", "TaskTrainer.play"),
        Station("board/trainer/link.py"),
        Station("board/client/watch.py", "TaskWatch.look"),
        Station("board/client/run.py", "TaskRun.add_result"),
    ),
}
"""Each walk, as ``docs/architecture.md`` has it, in the order in which its functions are entered first."""


@dataclass
class Trace:
    """The functions of rlexp that were entered, in their order over all threads."""

    entries: list[tuple[int, Station]] = field(default_factory=list)
    """With the thread of each."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace this thread, and those that start meanwhile for as long as they live."""
        before = sys.getprofile()
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before)

    def since(self, first: int) -> Trace:
        """Return what was entered from the entry of that number on."""
        return Trace(self.entries[first:])

    def _enter(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            station = Station(code.co_filename.removeprefix(PACKAGE), code.co_qualname)
            self.entries.append((threading.get_ident(), station))

    def first_entries(self, walk: Sequence[Station]) -> dict[Station, int | None]:
        """Return when each traced station was entered first; None: never."""
        order = [station for _, station in self.entries]
        return {each: order.index(each) if each in order else None for each in walk if each.function}

    def stays(self, first: int, last: int) -> Counter[str]:
        """Return how often each file was entered from another one between two entries; each thread by itself."""
        threads: dict[int, list[str]] = {}
        for thread, station in self.entries[first : last + 1]:
            threads.setdefault(thread, []).append(station.file)
        return Counter(file for files in threads.values() for file, _ in groupby(files))


def trace_training(folder: Path) -> dict[str, Trace]:
    """Train a trial of Ape-X as Tune does, from the text of its file until Ctrl-C; return the traces of its walks."""
    config = {**TINY, "seed": 3, "num_workers": 1, "optimizer": ONE_SHARD}
    file = folder / "experiment.yaml"
    file.write_text(to_yaml({"small": {"run": "APEX", "env": "CartPole-v1", "config": config}}), encoding="utf-8")
    trace = Trace()
    with trace.running():
        (trial,) = load_plan([file]).trials
        placement(trial.experiment)
    with (
        StopRequest(lambda: None) as request,
        RunDirectory.create(folder, "run", None, [], overwrite=False) as directory,
    ):
        directory.start([trial])
        source = FixedTrials([trial])
        assignment = {ASSIGNMENT: assignment_of(trial, directory, source)}
        request.trials_may_save(directory.path / ".stop")
        events = TrialEvents(source, directory, QuietDisplay(io.StringIO()), request)
        tunes = SimpleNamespace(config=assignment, status="RUNNING")  # all that is asked of Tune's trial
        process = ExperimentTrainable.__new__(ExperimentTrainable)  # Tune's own part of a Trainable is not needed
        with closing(events), closing(SimpleNamespace(close=process.cleanup)):
            events.on_trial_start(0, [], tunes)  # type: ignore[arg-type]
            process.setup(assignment)
            with trace.running():
                process.begin()
                began = len(trace.entries)
                for _ in range(ITERATIONS):
                    events.on_result(process.step())
                trained = len(trace.entries)
                signal.raise_signal(signal.SIGINT)
                results = (process.step() for _ in range(MOST_ITERATIONS))
                events.on_result(next(result for result in results if result["stopped"]))
                events.on_trial_complete(0, [], tunes)  # type: ignore[arg-type]
    return {
        "num_workers": trace,
        "observation to gradient": trace,
        "weights": trace,
        "row to TensorBoard": trace.since(began),
        "Ctrl-C": trace.since(trained),
    }


def trace_submission(folder: Path) -> dict[str, Trace]:
    """Submit an experiment to a board of this process, which a trainer joins."""
    OPENERS["memory"] = open_memory_board
    address = BoardAddress("memory", f"walks-{folder.name}")
    board = open_board(address)
    file, trace = folder / "experiment.yaml", Trace()
    file.write_text(EXPERIMENT, encoding="utf-8")
    place = RunPlace(folder / "out", None, False, [])
    submitter = Submitter(address, SubmitOptions(place), _JoinedAtOnce(board, folder), never)
    with trace.running():
        submitter.submit(checked_plan(file, (), None, LoadOptions()))
    return {"submit to result": trace}


class _JoinedAtOnce(QuietDisplay):
    """Lets a trainer join the board and train what was submitted, before the submitter looks for the first time."""

    def __init__(self, board: Board, folder: Path) -> None:
        super().__init__(io.StringIO())
        self._board, self._folder = board, folder

    def on_submitted(self, task_id: str) -> None:
        options = TrainingOptions(BoardAddress("memory", "walks"), self._folder, TrainerLimits(in_cluster=True))
        trainer = _TrainerWithoutCommand(self._board, "trainer", TrustedCode(), options, lambda text: None)
        Joiner(self._board, "trainer", trainer, lambda text: None, never, once=True).run()


class _TrainerWithoutCommand(TaskTrainer):
    """Puts a row and a checkpoint on the board itself, in place of the command that it would start."""

    def _train(self, lead: Lead, command: Sequence[str], should_stop: ShouldStop) -> tuple[int, bool]:
        task = self._board.describe(lead.task_id)
        assert task is not None
        told, key = ToldTrainer(self._board, task, lead=lead), password_keys("", task.id).key
        told.put_rows(result_row(1, done=True))
        told.put_result(self._options.out, 1, key)
        told.finish()
        return 0, False


SCENES: Sequence[Callable[[Path], dict[str, Trace]]] = (trace_training, trace_submission)


def traced_walks(folder: Path) -> dict[str, Trace]:
    """Return the trace of each walk; the scenes write below ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainable, "RayTaskPool", CountingPool)
        found: dict[str, Trace] = {}
        for scene in SCENES:
            place = folder / scene.__name__
            place.mkdir()
            found |= scene(place)
    return found


def report(traces: Mapping[str, Trace]) -> Iterator[str]:
    """Yield a table for each walk: the files, the entry by which each is reached, stays in it, and returns to it."""
    for name, walk in WALKS.items():
        trace = traces[name]
        first = {station: at for station, at in trace.first_entries(walk).items() if at is not None}
        begin, end = min(first.values()), max(first.values())
        stays = trace.stays(begin, end)
        yield f"{name}: {end - begin + 1} calls"
        yield f"  {'file':44}{'first':>8}{'stays':>8}{'returns':>8}  function"
        for station in walk:
            at, count = first.get(station), stays[station.file]
            numbers = ["*"] * 3 if at is None else [str(at - begin), str(count), str(count - 1)]
            yield f"  {station.file:44}" + "".join(f"{number:>8}" for number in numbers) + f"  {station.function}"
        others = {file: count for file, count in stays.items() if file not in {station.file for station in walk}}
        total = sum(others.values())
        yield f"  {f'{len(others)} other files':44}{'':8}{total:>8}{total - len(others):>8}"
        yield ""


def main() -> None:
    """Print the report; what the commands would remember of their user is written to a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        for line in report(traced_walks(Path(folder))):
            print(line)


if __name__ == "__main__":
    main()
