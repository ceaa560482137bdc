"""TaskPlayer: plays the tasks that an actor joins, and shows how it does. Neither torch nor Ray is imported here."""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from rlexp.agents.board.task_demands import actor_excess, number_excess
from rlexp.agents.board.task_description import SeatSpecs, actor_settings, read_description
from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import TrialError
from rlexp.joined_actors.joined_actor import ActorFigures, JoinedActor
from rlexp.joined_actors.outbox import SeatEnd
from rlexp.machine import this_machine
from rlexp.rollout.evaluation import ShouldStop
from rlexp.rollout.worker import RolloutWorker
from rlexp.transport.address import QUEUE_OF_BOARD
from rlexp.transport.board import Board, Seat, Task
from rlexp.transport.board_errors import BannedError
from rlexp.transport.credentials import ActorKeys, accepts_task, task_signature
from rlexp.transport.tokens import TOKEN_VARIABLE, JoinToken, actor_keys
from rlexp.user_code.trusted_code import Obstacle, TrustedCode

_HOW_TO_GIVE_A_TOKEN: Final = f"give the one that you got from the trainer: --token @FILE, or {TOKEN_VARIABLE}"
_QUEUE_NAMES: Final = {
    QUEUE_OF_BOARD: "the board itself",
    "rabbitmq": "RabbitMQ",
    "mqtt": "MQTT",
    "pubsub": "Google Cloud Pub/Sub",
}
_QUEUE_HINTS: Final = {
    QUEUE_OF_BOARD: "leave out --queue, or write --queue none where RLEXP_QUEUE is set",
    "rabbitmq": "give the address that its trainer uses: --queue amqps://USER@HOST",
    "mqtt": "give the address that its trainer uses: --queue mqtts://USER@HOST",
    "pubsub": "give the topic that its trainer uses: --queue pubsub://PROJECT/TOPIC",
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

    def on_left(self, figures: ActorFigures, task: str, why: str) -> None:
        """Show that the seat was left, with all that was done in it."""
        ...


class TaskPlayer:
    """Claims seats of one board for one member; used by one thread."""

    def __init__(
        self,
        board: Board,
        member: str,
        password: str,
        trusted: TrustedCode,
        view: ActorView,
        token: JoinToken | None = None,
    ) -> None:
        """Without a ``token``, the keys of messages are derived from the board's ``password``."""
        self._board, self._member, self._password = board, member, password
        self._trusted, self._view, self._token = trusted, view, token
        self._refusal = ""

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be played here: it is not the trainer's, of another version, or foreign code."""
        if not accepts_task(task, self._keys(task)):
            return self._distrust(task)
        excess = number_excess(task.description)
        if excess is not None:
            return _too_much(excess)
        try:
            description = read_description(task)
        except TrialError as error:
            return Obstacle(f"cannot be read: {error.message}", error.hint or "")
        if description.queue != self._board.queue_kind:
            return queue_obstacle(description.queue, self._board.queue_kind)
        config = description.config
        excess = actor_excess(config, this_machine().memory_total)
        if excess is not None:
            return _too_much(excess)
        return self._trusted.obstacle(description.env, config.env_config, description.imports, config.user_parts())

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        """Take a seat and return why it was left in the end; None where no seat is free any more.

        Raises TrialError where the env is another one here, or fails.
        """
        description = read_description(task)
        config = description.config
        specs = SeatSpecs(description, self._trusted.modules)  # first: a seat is not held while envs are tried
        try:
            seat = self._board.claim(task.id, self._member, config.board.lease_s)
        except BannedError as error:
            raise TrialError(error.message, error.hint) from error
        if seat is None:
            return None
        self._refusal = ""
        self._view.on_seat(seat.index, task.num_seats, task.id, description.env)
        settings = actor_settings(config, self._keys(task), specs.weights_shapes)
        actor = JoinedActor(self._board, seat, settings, partial(_worker_of, specs))
        end = actor.run(should_stop, partial(self._report, _constant_epsilon(config, specs, seat.index)))
        self._view.on_left(actor.figures(), task.id, end.value)
        return end

    def _report(self, epsilon: float | None, figures: ActorFigures) -> None:
        if figures.weights_refusal != self._refusal:
            self._refusal = figures.weights_refusal
            self._view.note(f"weights on the board are refused: {self._refusal}")
        self._view.on_figures(figures, epsilon)

    def _keys(self, task: Task) -> ActorKeys:
        return actor_keys(self._token, self._password, task.id)

    def _distrust(self, task: Task) -> Obstacle:
        """Return why a task is not what its trainer announced, as far as can be known here."""
        if self._token is None:
            return Obstacle("takes only actors with a join token", _HOW_TO_GIVE_A_TOKEN)
        if not task_signature(task):
            return Obstacle("is not signed, and this actor has a token", "its trainer needs the master key: --keys")
        return Obstacle("is not signed by the trainer of this actor's token", "ask the trainer for a token of its own")


def _too_much(excess: str) -> Obstacle:
    return Obstacle(f"asks for too much: {excess}", "its trainer has to ask for less")


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
