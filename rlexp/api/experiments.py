"""The experiments of a program: as it gives them (files or a dict), and checked, as ``rlexp.load`` returns them.

A training has processes of its own, which import the classes of a dict by name. So a class of a notebook's cell, or of
the program that was started, is written to a module first, as text, with the imports, functions and values that it
uses. The module stays beside the runs: they can be resumed and evaluated later.
"""

from __future__ import annotations

import ast
import hashlib
import json
import linecache
import re
import symtable
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from rlexp.cluster.room.machine import check_requirements
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import with_current_folder
from rlexp.config.load import LoadOptions, Plan, load_plan, resolved_yaml
from rlexp.config.yaml.python_values import ExperimentDict
from rlexp.errors import ConfigError, Notice, Problem, RlexpError, UsageError
from rlexp.files import replace_text
from rlexp.tuning.request import Source

CODE_FOLDER: Final = "notebook_code"
"""Name of the folder beside the runs that has the modules."""
MAIN: Final = "__main__"
_FUTURE: Final = "from __future__ import annotations\n"
_IN_A_MODULE: Final = "write it to a module: %%writefile my_module.py as the first line of its cell, then import it"
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_OPTION: Final = re.compile(
    r"--(?P<name>algo|env) (?P<value>.*)|-o config\.(?P<key>[\w.]+)=.*|-o (?P<stop>stop)=.*", re.DOTALL
)
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that JSON may have as they are, and YAML must not."""


@dataclass(frozen=True)
class LoadedExperiment:
    """One experiment; ``variants`` are the variants of its grid, or a single one without a grid."""

    name: str
    variants: tuple[Experiment, ...]
    trials: tuple[Trial, ...]
    """Each variant with each of its seeds; of a sweep, the trials that are known beforehand."""

    @property
    def run(self) -> str:
        """The agent: ``DQN``."""
        return self.variants[0].run

    @property
    def env(self) -> str:
        """The env of the first variant."""
        return self.variants[0].env

    @property
    def stop(self) -> Mapping[str, float]:
        """When trials of the first variant stop."""
        return self.variants[0].stop

    @property
    def config(self) -> CommonConfig:
        """Every key of the agent, as the first variant has it."""
        return self.variants[0].config


@dataclass(frozen=True)
class SingleExperiment:
    """One experiment without a file, as a program names it: a preset has its other settings."""

    env: str | type | None
    algo: str | None
    stop: Mapping[str, Any] | None
    config: Mapping[str, Any] | None

    def source(self, code_folder: Path) -> tuple[Source, tuple[str, ...]]:
        """Return its agent and env, and the overrides that its ``stop`` and ``config`` are.

        Raises UsageError if it has no agent or env, ConfigError if a value has no place in an experiment.
        """
        if self.env is None or self.algo is None:
            missing = "env" if self.env is None else "algo"
            example = 'rlexp.run(env="CartPole-v1", algo="PPO")'
            raise UsageError(f"{missing} is missing, and there are no experiments", f"{example}, or rlexp.run(FILE)")
        given = {"env": self.env, "config": dict(self.config or {}), "stop": dict(self.stop or {})}
        named, written = with_modules(given, code_folder)
        plain = _plain(named)
        overrides = [f"config.{key}={_flow(_key(key), value)}" for key, value in plain["config"].items()]
        overrides += [f"stop={_flow('stop', plain['stop'])}"] if plain["stop"] else []
        folders = (*written, *module_folders(given))
        return Source(agent=self.algo, env=plain["env"], folders=folders), tuple(overrides)


def _flow(where: str, value: Any) -> str:
    """Return a value as YAML on one line; raises ConfigError for NaN and infinity, which JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ConfigError([Problem(where, "has a number that is not finite")]) from error
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _key(key: str) -> str:
    return f'config["{key}"]'


def naming_arguments(error: RlexpError) -> RlexpError:
    """Return the error of a single experiment with the arguments of ``rlexp.run`` in place of the command's options."""
    if not isinstance(error, ConfigError):
        return error
    return ConfigError([replace(problem, where=_argument(problem.where)) for problem in error.problems])


def _argument(where: str) -> str:
    option = _OPTION.fullmatch(where)
    if option is None:
        return where
    if option["name"]:
        return f'{option["name"]}="{option["value"]}"'
    return _key(option["key"]) if option["key"] else "stop"


class LoadedExperiments(Sequence[LoadedExperiment]):
    """The experiments of a file or dict, in their order; also found by their names: ``loaded["cartpole"]``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._experiments = tuple(_experiments(plan))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the user should know: keys of other releases, keys without effect."""
        return self._plan.notices

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of all experiments."""
        return self._plan.trials

    def to_yaml(self) -> str:
        """Return an experiment file that makes the same trials, every key with its value."""
        return resolved_yaml(self._plan)

    def __getitem__(self, key: Any) -> Any:
        """Return the experiment with a number or a name, a tuple of them for a slice; KeyError if there is none."""
        if not isinstance(key, str):
            return self._experiments[key]
        found = next((each for each in self if each.name == key), None)
        if found is None:
            raise KeyError(f"no experiment {key!r}; there are {', '.join(each.name for each in self)}")
        return found

    def __len__(self) -> int:
        return len(self._experiments)

    def __repr__(self) -> str:
        each = ", ".join(f"{one.name} ({one.run}, {one.env}, {len(one.trials)} trials)" for one in self)
        return f"<{len(self)} experiments: {each}>"


def load_experiments(
    experiments: str | Path | Sequence[str | Path] | Mapping[str, Any],
    overrides: Sequence[str],
    seed: int | None,
    imports: Sequence[str],
    allow_unknown: bool,
) -> LoadedExperiments:
    """See :func:`rlexp.load`."""
    source = source_of(experiments)
    folders = None if source.data is None else source.folders
    options = LoadOptions(imports=tuple(imports), allow_unknown=allow_unknown, module_folders=folders)
    sources: Sequence[Path | ExperimentDict] = source.files if source.data is None else [ExperimentDict(source.data)]
    plan = load_plan(sources, overrides, seed, options)
    check_requirements(plan)
    return LoadedExperiments(plan)


def _experiments(plan: Plan) -> Iterator[LoadedExperiment]:
    for planned in plan.experiments:
        trials = tuple(trial for trial in plan.trials if trial.experiment.name == planned.name)
        sweep = next((sweep for sweep in plan.sweeps if sweep.name == planned.name), None)
        firsts = tuple(trial.experiment for trial in trials if trial.sample == 0)  # one of each variant
        variants = sweep.variants if sweep is not None else firsts
        yield LoadedExperiment(planned.name, variants, trials)


def source_of(
    experiments: str | Path | Sequence[str | Path] | Mapping[str, Any], code_folder: Path | None = None
) -> Source:
    """Return the source of experiments for another process; raises ConfigError if a value cannot be sent there.

    With ``code_folder``, classes of a notebook's cells are written to a module there.
    """
    if not isinstance(experiments, Mapping):
        named = [experiments] if isinstance(experiments, str | Path) else experiments
        return Source(files=tuple(Path(file) for file in named))
    written: tuple[str, ...] = ()
    given = experiments
    if code_folder is not None:
        experiments, written = with_modules(experiments, code_folder)
    return Source(data=_plain(experiments), folders=(*written, *module_folders(given)))


def _plain(experiments: Mapping[str, Any]) -> Any:
    """Return a dict's values as JSON has them; raises ConfigError if one cannot be sent to another process."""
    found = ExperimentDict(experiments).read()
    if found.problems or found.root is None:
        raise ConfigError([finding.problem() for finding in found.problems])
    return found.root.plain()


def module_folders(experiments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of modules that a dict names: this one, the program's, and those that its classes come from.

    Values of the dict are values that experiments can have.
    """
    program = getattr(sys.modules["__main__"], "__file__", None)
    beside = [] if program is None else [str(Path(program).absolute().parent)]
    return with_current_folder([*beside, *dict.fromkeys(_folders(experiments))])


def _folders(value: object) -> Iterator[str]:
    """Yield the folders in which the modules of classes are found that are not installed."""
    if isinstance(value, type):
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        if file is not None and not str(file).startswith(_INSTALLED):
            path = Path(file).absolute()
            levels = value.__module__.count(".") + (path.stem == "__init__")
            yield str(path.parents[levels])
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _folders(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _folders(item)


def with_modules(experiments: Mapping[str, Any], folder: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return experiments with names in place of the classes of ``__main__``, and the folder of their module.

    The module is written to ``folder``. Raises UsageError if it cannot be, or if a class needs what no text can give.
    """
    try:
        classes = list(dict.fromkeys(_main_classes(experiments)))
    except RecursionError:  # the reader says of a dict that contains itself where it does
        return experiments, ()
    if not classes:
        return experiments, ()
    text = _ModuleText(vars(sys.modules[MAIN])).of(classes)
    name = f"cell_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / f"{name}.py", text)
    except OSError as error:
        raise UsageError(f"cannot write {folder / name}.py: {error.strerror}", "choose another out") from error
    return _replaced(experiments, name), (str(folder.absolute()),)


def _main_classes(value: object) -> Iterator[type]:
    if isinstance(value, type) and value.__module__ == MAIN:
        yield value
    elif isinstance(value, Mapping):
        for item in (*value, *value.values()):  # a class with arguments is a key
            yield from _main_classes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _main_classes(item)


def _replaced(value: Any, module: str) -> Any:
    if isinstance(value, type) and value.__module__ == MAIN:
        return f"{module}:{value.__qualname__}"
    if isinstance(value, Mapping):
        return {_replaced(key, module): _replaced(item, module) for key, item in value.items()}
    return type(value)(_replaced(item, module) for item in value) if type(value) in (list, tuple) else value


class _ModuleText:
    """Writes one module: classes of a namespace, after all that they use by name."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._parts: dict[str, str] = {}
        self._open: set[str] = set()
        """Names that are being added: what they use may use them again."""

    def of(self, classes: list[type]) -> str:
        """Return the module's text."""
        for cls in classes:
            if self._names.get(cls.__qualname__) is not cls:
                raise UsageError(f"{cls.__qualname__} is not at the top level of its cell or program", _IN_A_MODULE)
            self._add(cls.__qualname__, cls.__qualname__)
        about = f'"""{", ".join(cls.__qualname__ for cls in classes)}, with what they use: written by rlexp."""\n\n'
        return about + _FUTURE + "\n\n" + "\n\n".join(self._parts.values())

    def _add(self, name: str, user: str) -> None:
        """Add a name that ``user`` uses, unless it is one of Python's own."""
        if name not in self._names or name in self._parts or name in self._open:
            return
        value = self._names[name]
        self._open.add(name)
        self._parts[name] = self._import_of(name, value) or self._value(name, value) or self._definition(name, user)
        self._open.discard(name)

    def _import_of(self, name: str, value: Any) -> str | None:
        """Return the line that imports a value under a name; None if it cannot be imported."""
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}\n"
        module = getattr(value, "__module__", None)
        known = [getattr(value, attribute, None) for attribute in ("__qualname__", "__name__", "_name")]
        own = next((each for each in known if isinstance(each, str)), None)
        if not isinstance(module, str) or module == MAIN or own is None or not own.isidentifier():
            return None
        found = getattr(sys.modules.get(module), own, None)
        return f"from {module} import {own} as {name}\n" if found is value else None

    @staticmethod
    def _value(name: str, value: Any) -> str | None:
        """Return the line that gives a name a value that can be written: numbers, texts, and lists of them."""
        try:
            text = repr(value)
            return f"{name} = {text}\n" if ast.literal_eval(text) == value else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None

    def _definition(self, name: str, user: str) -> str:
        """Return the text of a function or class, once all that it uses was added."""
        value = self._names[name]
        text = _source(name, value) if getattr(value, "__module__", None) == MAIN else None
        if text is None:
            used = "its text is not known" if name == user else f"it uses {name}, an object of {type(value).__name__}"
            raise UsageError(f"{user} cannot be given to the processes that train: {used}", _IN_A_MODULE)
        for used in sorted(set(_global_names(symtable.symtable(_FUTURE + text, "<cell>", "exec"), is_top=True))):
            self._add(used, name)
        self._parts |= {module: f"import {module}\n" for module in self._submodules(text)}
        return text

    def _submodules(self, text: str) -> Iterator[str]:
        """Yield the modules that a text uses as ``package.module``: ``import package`` alone may not import them."""
        for node in ast.walk(ast.parse(text)):
            chain = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
            package = self._names.get(chain[0])
            module = ".".join([getattr(package, "__name__", ""), *chain[1:]])
            if isinstance(package, ModuleType) and module in sys.modules:
                yield module


def _source(name: str, value: Any) -> str | None:
    """Return the text of the newest definition of a function or class, with its decorators."""
    for file in dict.fromkeys(_files(value)):
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in reversed(list(ast.walk(tree))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name and not node.col_offset:
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "".join(lines[start - 1 : node.end_lineno]).rstrip() + "\n"
    return None


def _files(value: Any) -> Iterator[str]:
    """Yield the names of the cells or files in which a definition may be, the likeliest first."""
    for part in (value, *vars(value).values()):
        part = getattr(part, "fget", None) or getattr(part, "__wrapped__", None) or part  # a property, a decorator
        code = getattr(getattr(part, "__func__", part), "__code__", None)
        if isinstance(code, CodeType):
            yield code.co_filename
    program = getattr(sys.modules[MAIN], "__file__", None)
    yield from [] if program is None else [str(program)]
    yield from (file for file in reversed(list(linecache.cache)) if "ipykernel_" in file or "<ipython" in file)


def _global_names(table: symtable.SymbolTable, *, is_top: bool) -> Iterator[str]:
    """Yield the names that a text takes from its module."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_top or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner, is_top=False)
