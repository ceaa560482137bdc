"""What a task may run on the machine of an actor: Gymnasium's own envs, and what the user of that machine allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlexp.config.keys.env_ids import brought_by
from rlexp.config.keys.user_modules import NO_MODULES, UserModules, UserPart, modules_of


@dataclass(frozen=True)
class Obstacle:
    """Why a task is not played here."""

    message: str
    """The end of a sentence that begins with the task."""
    hint: str


@dataclass(frozen=True)
class TrustedCode:
    """What was allowed with ``--allow-env``, ``--import`` and ``--allow-class``."""

    envs: frozenset[str] = frozenset()
    modules: UserModules = NO_MODULES
    """The modules that may be imported, and where they may lie."""
    classes: frozenset[str] = frozenset()
    """The classes (``module:Class``) that may be named in ``config``, with any arguments.

    Not all of a module's: it may have imported some that write files or start programs with what they are given.
    """

    def obstacle(
        self, env: str, env_config: Mapping[str, Any], imports: Sequence[str], parts: Iterable[UserPart]
    ) -> Obstacle | None:
        """Return what of a task nobody has allowed here; None where there is nothing.

        ``env_config`` are keyword arguments that a stranger chooses: files to read, servers to call.
        """
        strange = [module for module in imports if module not in self.modules.imports]
        if strange:
            return Obstacle(f"imports the module {strange[0]}", f"--import {strange[0]} allows it")
        for part in parts:
            if part.name not in self.classes:
                return Obstacle(f"names {part.name}, a class of its own", f"--allow-class {part.name} allows it")
        if env in self.envs:
            return None
        if modules_of(env):
            return Obstacle(f"plays {env}, a class of its own", f"--allow-env {env} allows it")
        provider = brought_by(env)
        if provider is not None:
            return Obstacle(f"plays {env} of the package {provider.package}", f"--allow-env {env} allows it")
        if env_config:
            return Obstacle(f"gives {env} an env_config of its own", f"--allow-env {env} allows it")
        return None
