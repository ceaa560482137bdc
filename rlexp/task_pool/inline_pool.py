"""InlineTaskPool: every object is here, and every call runs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlexp.task_pool.pool import Actor, Completed, Lane, Ref, Resources

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")


class InlineTaskPool:
    """A TaskPool that runs every call at once, in the caller's thread."""

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        return Actor(name, make(*args, **kwargs))

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        return Ref(_result(actor, method, args))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        result = _result(actor, method, args)
        parts = result if lane.num_returns > 1 else (result,)
        lane.deliver(Completed(actor, tuple(Ref(part) for part in parts)))

    def put(self, value: R) -> Ref[R]:
        return Ref(value)

    def keep(self, value: R) -> Ref[R]:
        return Ref(value)

    def get(self, ref: Ref[R], timeout: float) -> R:
        value: R = ref.handle
        return value

    def wait(self, timeout: float) -> bool:
        return True

    def remove(self, actor: Actor[Any]) -> None:
        return None

    def stop(self) -> None:
        return None


def _result(actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> Any:
    values = [arg.handle if isinstance(arg, Ref) else arg for arg in args]
    return getattr(actor.handle, method.__name__)(*values)
