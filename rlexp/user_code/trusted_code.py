"""Decides which code may run for a run, a checkpoint or a task: these name parts, and only this user allows code.

Gymnasium's own envs and envs of installed packages belong to this machine. Modules and classes run if they were allowed
on this call, or are the files with which this user has trained. A table in docs/operating.md says the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.env_ids import brought_by
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_code import NO_MODULES, UserModules, UserPart, modules_of, with_current_folder
from rlexp.errors import ResumeError, UsageError
from rlexp.user_code.finding import ModuleFile, is_installed_file, module_file
from rlexp.user_code.import_guard import GUARD
from rlexp.user_code.memory import Memory, Remembered, is_account, model_files, remember

_ENVS_OF_GYM: Final = ("GymV21Environment-v0", "GymV26Environment-v0")
"""Envs that import the module that their ``env_id`` names."""
_MOST_SHOWN: Final = 10
"""Most names in a message."""
_WHERE: Final = "a module is looked for in installed packages, PYTHONPATH and the current folder"


@dataclass(frozen=True)
class Obstacle:
    """The reason why a task is not played here."""

    message: str
    """The end of a sentence that begins with the task."""
    hint: str


@dataclass(frozen=True)
class Part:
    """A module, an env or a class that a run names."""

    name: str
    """``my_env``, ``my_env:MyEnv``."""
    option: str
    """The option that allows it."""

    @property
    def module(self) -> str:
        """The module that is imported for it; empty: none."""
        return self.name.partition(":")[0] if ":" in self.name or self.option == "--import" else ""

    @property
    def shown_option(self) -> str:
        """The words to type."""
        return _typed(self.option, self.name)


@dataclass(frozen=True)
class Named:
    """The code that a run or a checkpoint names."""

    place: Path
    """The run, or the checkpoint if it is not in a run."""
    imports: Sequence[str]
    folders: Sequence[str]
    """Folders in which modules were searched when it was trained. They choose only among stored files."""
    experiments: Iterable[Experiment] = ()

    def parts(self) -> list[Part]:
        """Return the code that it names."""
        return list(
            dict.fromkeys(chain((Part(name, "--import") for name in self.imports), *map(_parts, self.experiments)))
        )


Ask = Callable[[Part, ModuleFile], bool]
"""A function that shows a file to a user at a terminal, and returns whether it may run."""


@dataclass(frozen=True)
class TrustedCode:
    """The parts allowed with ``--allow-env``, ``--import``, ``--allow-class`` and ``--allow-storage``."""

    envs: frozenset[str] = frozenset()
    modules: UserModules = NO_MODULES
    """The modules that may be imported, and their possible places."""
    classes: frozenset[str] = frozenset()
    """The classes (``module:Class``) that may be named in ``config``, with any arguments.

    Not all classes of a module: it may have imported some that write files or start programs with their arguments.
    """
    storages: frozenset[str] = frozenset()
    """The storages that a run may name."""
    ask: Ask | None = field(default=None, compare=False)
    """A function that asks the user; None: nobody can be asked."""

    @staticmethod
    def of(
        imports: Iterable[str] | None,
        envs: Iterable[str] | None,
        classes: Iterable[str] | None,
        storages: Iterable[str] | None = None,
        ask: Ask | None = None,
    ) -> TrustedCode:
        """Return the parts that options or arguments have allowed; their modules may be in the current folder."""
        modules = UserModules(tuple(imports or ()), with_current_folder(()))
        return TrustedCode(frozenset(envs or ()), modules, frozenset(classes or ()), frozenset(storages or ()), ask)

    def obstacle(
        self, env: str, env_config: Mapping[str, Any], imports: Sequence[str], parts: Iterable[UserPart]
    ) -> Obstacle | None:
        """Return the part of a task that nobody has allowed here; None if there is none.

        ``env_config`` are keyword arguments that a stranger chooses: files to read, servers to call.
        """
        strange = [module for module in imports if module not in self.modules.imports]
        if strange:
            return Obstacle(f"imports the module {_shown(strange[0])}", f"{_typed('--import', strange[0])} allows it")
        for part in parts:
            if part.name not in self.classes:
                allowing = _typed("--allow-class", part.name)
                return Obstacle(f"names {part.name}, a class of its own", f"{allowing} allows it")
        if env in self.envs:
            return None
        allowing = f"{_typed('--allow-env', env)} allows it"
        if modules_of(env):
            return Obstacle(f"plays {env}, a class of its own", allowing)
        provider = brought_by(env)
        if provider is not None:
            return Obstacle(f"plays {env} of the package {provider.package}", allowing)
        if env_config:
            return Obstacle(f"gives {env} an env_config of its own", allowing)
        return None

    def decided(self, named: Named) -> UserModules:
        """Return the modules that may be imported for a run or checkpoint, and their folders.

        Its own folders are not searched, only the folders of allowed files: a file that changed there is refused, even
        if a copy elsewhere is allowed. From now on nothing in it can be imported.

        Raises ResumeError, with the options to type, if it names code that nobody has allowed.
        """
        place = named.place.resolve()
        GUARD.refuse(place)
        given = (Part(name, "--import") for name in self.modules.imports)
        parts, memory = list(dict.fromkeys((*named.parts(), *given))), Memory.read()
        for env, model in model_files(named.experiments):
            if env not in self.envs and not memory.knows_address(model):
                message = f"{named.place} plays {_shown(model)}, a file that you have not trained with"
                raise ResumeError(message, f"{_typed('--allow-env', env)} allows it, if it is yours")
        files = {part: self._file(part, named, memory) for part in parts}
        strange = [part for part in parts if files[part] is None and (part.module or part.name not in self.envs)]
        if strange:
            raise _refusal(named, strange)
        found = [file for file in files.values() if file is not None]
        folders = tuple(
            dict.fromkeys(file.folder for file in found if file.folder and not is_installed_file(file.file))
        )
        for file in found:
            _check(file, folders, place, named)
        GUARD.allow(folders)
        imports = tuple(dict.fromkeys((*named.imports, *self.modules.imports)))
        return UserModules(imports, folders, tuple(dict.fromkeys(file.module for file in found)))

    def check_storage(self, url: str, run: Path, shown: str) -> None:
        """Raise ResumeError if a run names a storage or tracker that is not this user's, as credentials are sent to it.

        ``shown`` is the URL without its own.
        """
        if url in self.storages or Memory.read().knows_address(url):
            return
        if is_account(url):
            message = f"{run} records with the tracker {shown}, which no run that you started has used"
            raise ResumeError(message, f"{_typed('--allow-storage', url)} allows it, if it is yours; or --track none")
        message = f"{run} names the storage {shown}, which no run that you started has used"
        raise ResumeError(message, "--allow-storage with its whole URL allows it, if it is yours")

    def _file(self, part: Part, named: Named, memory: Memory) -> ModuleFile | None:
        """Return the file that may run for a part: allowed on this call, stored, or allowed when asked."""
        if not part.module:
            return None
        allowed = {"--import": self.modules.imports, "--allow-env": self.envs, "--allow-class": self.classes}
        if part.name in allowed[part.option]:
            found = module_file(part.module, self.modules.folders)
            if found is None:
                raise UsageError(f"{part.shown_option}: it cannot be imported: no file of it can be read", _WHERE)
            return found
        # Where the run's own folders have the module, another copy would be other code under its name.
        own = module_file(part.module, named.folders)
        for known in memory.find(part.name, named.folders):
            if own in (None, known) and module_file(part.module, (known.folder,)) == known:
                return known
        return self._asked(part, named)

    def _asked(self, part: Part, named: Named) -> ModuleFile | None:
        if self.ask is None:
            return None
        found = module_file(part.module, with_current_folder(named.folders))
        if found is None or found.is_within([named.place.resolve()]) or not self.ask(part, found):
            return None
        remember([Remembered(part.name, found)])
        return found


NOTHING_ALLOWED: Final = TrustedCode()
"""The code with which this user has trained, and no other."""


def _typed(option: str, name: str) -> str:
    """Return an option in a shell's form, to be copied; the name is a stranger's."""
    return f"{option} {shlex.quote(_shown(name))}"


def _shown(name: str) -> str:
    """Return a name in one line, as other lines would look like ours."""
    return name if name.isprintable() else repr(name)


def _parts(experiment: Experiment) -> Iterator[Part]:
    if ":" in experiment.env or experiment.env in _ENVS_OF_GYM:
        yield Part(experiment.env, "--allow-env")
    yield from (Part(part.name, "--allow-class") for part in experiment.config.user_parts())


def _check(file: ModuleFile, folders: tuple[str, ...], place: Path, named: Named) -> None:
    """Raise ResumeError for a module inside the run, or one for which another file would be imported."""
    if file.is_within([place]):
        message = f"the module {file.module}, which {named.place} names, is inside it: {file.file}"
        raise ResumeError(message, "move it elsewhere if it is yours; a run has no modules")
    now = module_file(file.module, folders)
    if now != file:
        message = f"{file.file} was allowed as the module {file.module}, and {now.file if now else 'nothing'} is found"
        raise ResumeError(message, "take the other one out of Python's search path")


def _refusal(named: Named, strange: Sequence[Part]) -> ResumeError:
    shown, others = strange[:_MOST_SHOWN], len(strange) - _MOST_SHOWN
    places = ((part, module_file(part.module, named.folders)) for part in shown)
    names = (_shown(part.name) + (f" ({_shown(file.file)})" if file is not None else "") for part, file in places)
    what = ", ".join(names) + (f" and {others:,} more" if others > 0 else "")
    message = f"{named.place} names code that you have not trained with, or that has changed since: {what}"
    options = " ".join(part.shown_option for part in shown)
    return ResumeError(message, f"{options} runs it, if it is yours; {_WHERE}")
