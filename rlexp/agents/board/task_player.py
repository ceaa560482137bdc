"""TaskPlayer: plays the tasks that an actor joins, and shows how it does. Neither torch nor Ray is imported here."""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from rlexp.agents.board.task_description import SeatSpecs, actor_settings, read_description
from rlexp.agents.board.trusted_code import Obstacle, TrustedCode
from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import TrialError
from rlexp.joined_actors.joined_actor import ActorFigures, JoinedActor
from rlexp.joined_actors.outbox import SeatEnd
from rlexp.rollout.evaluation import ShouldStop
from rlexp.rollout.worker import RolloutWorker
from rlexp.transport.address import QUEUE_OF_BOARD
from rlexp.transport.board import Board, Seat, Task
from rlexp.transport.credentials import message_key

_QUEUE_NAMES: Final = {QUEUE_OF_BOARD: "the board itself", "rabbitmq": "RabbitMQ", "mqtt": "MQTT"}
_QUEUE_HINTS: Final = {
    QUEUE_OF_BOARD: "leave out --queue, or write --queue none where RLEXP_QUEUE is set",
    "rabbitmq": "give the address that its trainer uses: --queue amqps://USER@HOST",
    "mqtt": "give the address that its trainer uses: --queue mqtts://USER@HOST",
}
_LATE: Final = 10**12
"""Env steps after which a schedule of ε has ended."""


class ActorView(Protocol):
    """Shows what an actor does."""

    def note(self, text: str) -> None:
        """Show an event."""
        ...

    def on_seat(self, seat: int, num_seats: int, task: str, env: str) -> None:
        """Show that a seat was taken."""
        ...

    def on_figures(self, figures: ActorFigures, epsilon: float | None) -> None:
        """Show how the actor does; ``epsilon`` is None where it changes over time."""
        ...


class TaskPlayer:
    """Claims seats of one board for one member; used by one thread."""

    def __init__(self, board: Board, member: str, password: str, trusted: TrustedCode, view: ActorView) -> None:
        """``password`` is the board's, from which the keys of messages are derived."""
        self._board, self._member, self._password = board, member, password
        self._trusted, self._view = trusted, view

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be played here: another version wrote it, or it is foreign code."""
        try:
            description = read_description(task)
        except TrialError as error:
            return Obstacle(f"cannot be read: {error.message}", error.hint or "")
        if description.queue != self._board.queue_kind:
            return queue_obstacle(description.queue, self._board.queue_kind)
        return self._trusted.obstacle(description.env, description.config.env_config, description.imports)

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        """Take a seat and return why it was left in the end; None where no seat is free any more.

        Raises TrialError where the env is another one here, or fails.
        """
        description = read_description(task)
        config = description.config
        specs = SeatSpecs(description, self._trusted.modules)  # first: a seat is not held while envs are tried
        seat = self._board.claim(task.id, self._member, config.board.lease_s)
        if seat is None:
            return None
        self._view.on_seat(seat.index, task.num_seats, task.id, description.env)
        settings = actor_settings(config, message_key(self._password, task.id))
        actor = JoinedActor(self._board, seat, settings, partial(_worker_of, specs))
        epsilon = _constant_epsilon(config, specs, seat.index)
        end = actor.run(should_stop, lambda figures: self._view.on_figures(figures, epsilon))
        self._view.note(f"left seat {seat.index} of {task.id}: {end.value}")
        return end


def queue_obstacle(wanted: str, given: str) -> Obstacle:
    """Return why a task whose fragments go over ``wanted`` is not joined by an actor that has ``given``."""
    hint = _QUEUE_HINTS.get(wanted, "install the same version of rlexp at both ends")
    return Obstacle(f"sends its fragments over {_shown(wanted)}, and this actor over {_shown(given)}", hint)


def _shown(queue: str) -> str:
    return _QUEUE_NAMES.get(queue, "a queue that this rlexp does not know")


def _worker_of(specs: SeatSpecs, seat: Seat) -> RolloutWorker:
    return RolloutWorker(specs.spec(seat))


def _constant_epsilon(config: DQNConfig, specs: SeatSpecs, seat: int) -> float | None:
    """Return the ε of a seat, None where it changes over time or nothing explores."""
    first, last = (specs.epsilon(seat, num_steps) for num_steps in (0, _LATE))
    return first if config.explore and first == last else None
