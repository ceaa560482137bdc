"""What a run or checkpoint names is imported only if its user has allowed it, or trained with the same file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from rlexp.board.messages.address import TASK_VARIABLE, HandedTask
from rlexp.commands.options import remember_ones_own, trusted_code
from rlexp.config.keys.agents import experiment_class
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_code import UserModules
from rlexp.config.load import LoadOptions, Plan, load_plan
from rlexp.errors import ResumeError, RlexpError, UsageError
from rlexp.user_code.classes import prepare_imports
from rlexp.user_code.finding import module_file
from rlexp.user_code.import_guard import GUARD
from rlexp.user_code.memory import FILE_NAME, Memory, addresses_of, remember_plan, state_folder, typed_addresses
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, Named, TrustedCode

pytestmark = pytest.mark.usefixtures("own_state")


EVIL = "evil_module_of_a_run"
MINE = "module_that_i_trained_with"


def experiment(env: str = "CartPole-v1", **config: object) -> Experiment:
    """Return an experiment in an env."""
    data = {"name": "e", "run": "DQN", "env": env, "stop": {"timesteps_total": 100}, "config": config}
    return experiment_class("DQN").model_validate(data)


def named(
    run: Path, *imports: str, folders: tuple[Path, ...] = (), env: str = "CartPole-v1", **config: object
) -> Named:
    """Return what a run names."""
    return Named(run, imports, tuple(map(str, folders)), [experiment(env, **config)])


def plan_of(folder: Path, *imports: str, **keys: object) -> Plan:
    """Return the plan of a file in a folder."""
    content = {"mine": {"run": "DQN", "env": "CartPole-v1", "stop": {"timesteps_total": 100}} | keys}
    (folder / "mine.yaml").write_text(json.dumps(content), encoding="utf-8")
    return load_plan([folder / "mine.yaml"], options=LoadOptions(imports=imports))


def trained_with(folder: Path, env: str, *imports: str) -> None:
    """Remember what is remembered when a file beside ``env``'s module is trained."""
    assert remember_plan(plan_of(folder, *imports, env=env)) is None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of the user's with a module."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / f"{MINE}.py").write_text("import gymnasium\nclass Env(gymnasium.Env): pass\n", encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of a stranger's, in a folder that was unpacked, which is the current one."""
    folder = tmp_path / "archive" / "run"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(GUARD, "_runs", set())
    monkeypatch.setattr(GUARD, "_allowed", set())
    before = list(sys.path), list(sys.meta_path)
    yield folder
    sys.path[:], sys.meta_path[:] = before
    sys.modules.pop(EVIL, None)
    sys.modules.pop(MINE, None)


def test_a_run_that_names_no_code_needs_nothing(run: Path) -> None:
    assert NOTHING_ALLOWED.decided(named(run, folders=(run,))) == UserModules((), (), ())


@pytest.mark.parametrize(
    ("names", "option"),
    [
        ({"imports": [EVIL]}, f"--import {EVIL}"),
        ({"env": f"{EVIL}:Env"}, f"--allow-env {EVIL}:Env"),
        ({"env": "gymnasium.envs.classic_control:CartPoleEnv"}, "--allow-env gymnasium.envs.classic_control"),
        ({"env": "GymV21Environment-v0"}, "--allow-env GymV21Environment-v0"),
        ({"config": {"callbacks": f"{EVIL}:C"}}, f"--allow-class {EVIL}:C"),
        ({"config": {"model": {"custom_model": f"{EVIL}:M"}}}, f"--allow-class {EVIL}:M"),
        ({"config": {"model": {"custom_preprocessor": f"{EVIL}:P"}}}, f"--allow-class {EVIL}:P"),
        ({"config": {"env_wrappers": ["gymnasium.wrappers:RecordVideo"]}}, "--allow-class gymnasium.wrappers:Record"),
    ],
)
@pytest.mark.parametrize("place", ["run", "beside", "current"])
def test_what_it_names_is_refused_wherever_it_lies(
    names: dict[str, object], option: str, place: str, run: Path, tmp_path: Path
) -> None:
    folder = {"run": run, "beside": run.parent / "modules", "current": run.parent}[place]
    folder.mkdir(exist_ok=True)
    (folder / f"{EVIL}.py").write_text("raise SystemError('imported')", encoding="utf-8")
    imports, config = names.get("imports", ()), names.get("config", {})
    assert isinstance(imports, list | tuple)
    assert isinstance(config, dict)
    given = named(run, *imports, folders=(folder, run), env=str(names.get("env", "CartPole-v1")), **config)
    with pytest.raises(ResumeError) as refused:
        NOTHING_ALLOWED.decided(given)
    assert option in (refused.value.hint or "")
    assert str(folder) not in sys.path


def test_what_was_trained_with_is_remembered_and_needs_no_option(project: Path, run: Path) -> None:
    trained_with(project, f"{MINE}:Env", MINE)
    modules = NOTHING_ALLOWED.decided(named(run, MINE, folders=(project,), env=f"{MINE}:Env"))
    assert modules == UserModules((MINE,), (str(project),), (MINE,))
    again = NOTHING_ALLOWED.decided(named(run, MINE, folders=(run,), env=f"{MINE}:Env"))
    assert again.folders == (str(project),), "the run's folder is not searched"


def test_another_class_of_a_module_of_mine_is_not_remembered(project: Path, run: Path) -> None:
    trained_with(project, f"{MINE}:Env")
    for given in (named(run, MINE, folders=(project,)), named(run, env=f"{MINE}:Other", folders=(project,))):
        with pytest.raises(ResumeError, match="have not trained with"):
            NOTHING_ALLOWED.decided(given)


def test_my_own_script_that_a_run_names_is_not_run(project: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_with(project, f"{MINE}:Env")
    (project / "deploy.py").write_text("raise SystemError('deployed')", encoding="utf-8")
    monkeypatch.chdir(project)
    with pytest.raises(ResumeError, match="deploy"):
        NOTHING_ALLOWED.decided(named(run, "deploy", folders=(project,)))


def test_a_file_that_changed_or_is_a_copy_elsewhere_is_not_remembered(project: Path, run: Path) -> None:
    trained_with(project, f"{MINE}:Env")
    given = named(run, env=f"{MINE}:Env", folders=(project,))
    (run.parent / f"{MINE}.py").write_text("raise SystemError('imported')", encoding="utf-8")
    assert NOTHING_ALLOWED.decided(given).folders == (str(project),)
    (project / f"{MINE}.py").write_text("raise SystemError('changed')", encoding="utf-8")
    with pytest.raises(ResumeError, match="changed since"):
        NOTHING_ALLOWED.decided(given)


def test_a_copy_of_another_project_does_not_stand_in_for_a_file_that_changed(project: Path, run: Path) -> None:
    other = shutil.copytree(project, project.parent / "other")
    for folder in (project, other):
        trained_with(folder, f"{MINE}:Env")
    given = named(run, env=f"{MINE}:Env", folders=(project,))
    assert NOTHING_ALLOWED.decided(given).folders == (str(project),)
    changed = project / f"{MINE}.py"
    changed.write_text("raise SystemError('changed')", encoding="utf-8")
    with pytest.raises(ResumeError, match=re.escape(f"{MINE}:Env ({changed})")):
        NOTHING_ALLOWED.decided(given)
    changed.unlink()
    assert NOTHING_ALLOWED.decided(given).folders == (str(other),), "a project that was moved"


def test_an_option_allows_a_module_of_the_current_folder_but_none_inside_the_run(
    project: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    given = named(run, MINE, env=f"{MINE}:Env")
    with pytest.raises(ResumeError, match=f"{MINE}:Env"):
        TrustedCode.of([MINE], (), ()).decided(given)
    assert TrustedCode.of([MINE], [f"{MINE}:Env"], ()).decided(given).folders == (str(project),)
    (run / f"{EVIL}.py").write_text("raise SystemError('imported')", encoding="utf-8")
    monkeypatch.chdir(run)
    with pytest.raises(ResumeError, match="is inside it"):
        TrustedCode.of([EVIL], (), ()).decided(named(run, EVIL))
    with pytest.raises(UsageError, match="--import no_such_module: it cannot be imported"):
        TrustedCode.of(["no_such_module"], (), ()).decided(named(run))


def test_who_is_asked_once_is_not_asked_again(project: Path, run: Path) -> None:
    shown: list[str] = []

    def answer(part: object, file: object) -> bool:
        shown.append(str(getattr(file, "file", "")))
        return True

    asking = TrustedCode.of((), (), (), ask=answer)
    given = named(run, env=f"{MINE}:Env", folders=(project,))
    for _ in range(2):
        assert asking.decided(given).folders == (str(project),)
    assert shown == [str(project / f"{MINE}.py")]
    assert NOTHING_ALLOWED.decided(given).folders == (str(project),)
    refusing = TrustedCode.of((), (), (), ask=lambda part, file: False)
    (project / "other.py").touch()
    with pytest.raises(ResumeError, match="other"):
        refusing.decided(named(run, "other", folders=(project,)))


def test_nobody_is_asked_about_a_file_inside_the_run(run: Path) -> None:
    (run / f"{EVIL}.py").touch()
    asking = TrustedCode.of((), (), (), ask=lambda part, file: pytest.fail("asked"))
    with pytest.raises(ResumeError, match=EVIL):
        asking.decided(named(run, EVIL, folders=(run,)))


@pytest.mark.parametrize("kind", ["module", "package", "namespace", "zip", "bytecode", "link"])
def test_nothing_inside_a_run_is_imported_even_if_pythons_path_has_it(kind: str, run: Path) -> None:
    place, source = run, "value = 1\n"
    if kind in ("module", "link"):
        (run / f"{EVIL}.py").write_text(source, encoding="utf-8")
    elif kind == "package":
        (run / EVIL).mkdir()
        (run / EVIL / "__init__.py").write_text(source, encoding="utf-8")
    elif kind == "namespace":
        (run / EVIL).mkdir()
    elif kind == "zip":
        place = run / "modules.zip"
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr(f"{EVIL}.py", source)
    else:
        (run / f"{EVIL}.py").write_text(source, encoding="utf-8")
        words = [sys.executable, "-m", "compileall", "-b", "-q", str(run)]
        subprocess.run(words, check=True)
        (run / f"{EVIL}.py").unlink()
    if kind == "link":
        place = run.parent / "link"
        place.symlink_to(run)
    NOTHING_ALLOWED.decided(named(run))
    sys.path.append(str(place))
    with pytest.raises(ModuleNotFoundError):
        __import__(EVIL)


def test_code_of_the_users_finds_what_is_beside_a_run_that_is_read(run: Path, project: Path) -> None:
    (run.parent / f"{EVIL}.py").touch()
    sys.path.append(str(run.parent))
    with GUARD.reading(run):
        exec(compile(f"import {EVIL}", str(project / "script.py"), "exec"), {})


@pytest.mark.parametrize(
    ("named", "place", "is_found"),
    [
        ("{beside}/site", "site", True),
        ("/nowhere:{beside}/site", "site", True),
        ("{beside}/../{folder}/site/", "site", True),
        ("{beside}/link", "site", True),
        ("{beside}/modules.zip", "modules.zip", True),
        ("", "site", False),
        ("site", "site", False),
        ("./site:~/site:$HOME/site", "site", False),
        (":/nowhere", ".", False),
        (".", ".", False),
        ("{beside}", ".", False),
        ("{beside}/..", ".", False),
        ("{beside}/sit", "site", False),
        ("{run}/site", "run/site", False),
        ("{run}/modules.zip", "run/modules.zip", False),
        ("{beside}/link_to_run", "run", False),
        ("{beside}/site", "link_in_site", False),
    ],
)
def test_installed_packages_find_by_name_what_is_in_absolute_folders_of_pythonpath(
    named: str, place: str, is_found: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run if place == "run" else run.parent / place.replace("run", run.name)
    (run.parent / "link").symlink_to(run.parent / "site")
    (run.parent / "link_to_run").symlink_to(run)
    monkeypatch.chdir(run.parent)
    if place == "link_in_site":  # a module of the folder that is a file of the run
        folder = run.parent / "site"
        folder.mkdir()
        (run / "stranger.py").touch()
        (folder / f"{EVIL}.py").symlink_to(run / "stranger.py")
    elif folder.suffix == ".zip":
        with zipfile.ZipFile(folder, "w") as archive:
            archive.writestr(f"{EVIL}.py", "value = 1\n")
    else:
        folder.mkdir(exist_ok=True)
        (folder / f"{EVIL}.py").touch()
    sys.path.append(str(folder))
    monkeypatch.setenv("PYTHONPATH", named.format(beside=run.parent, folder=run.parent.name, run=run))
    by_statement, by_name = _by_an_installed_package()
    with GUARD.reading(run):
        with pytest.raises(ModuleNotFoundError):
            by_statement()
        with contextlib.nullcontext() if is_found else pytest.raises(ModuleNotFoundError):
            by_name()
    sys.modules.pop(EVIL, None)
    by_statement()  # also an optional package of the user's, once the run is read


def test_what_is_beside_a_run_within_a_folder_of_pythonpath_stays_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "site" / "of" / "a" / "stranger" / "run"
    run.mkdir(parents=True)
    (run.parent / f"{EVIL}.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(run.parent)])
    _, by_name = _by_an_installed_package()
    with GUARD.reading(run), pytest.raises(ModuleNotFoundError):
        by_name()


def test_an_agent_in_a_relative_folder_of_pythonpath_may_be_a_strangers(run: Path) -> None:
    site = run.parent / "site"
    information = site / "evil-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Name: evil\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[rlexp.agents]\nEVIL = {EVIL}:Experiment\n")
    (site / f"{EVIL}.py").write_text("print('it ran')\n")
    code = f"""if True:
        from pathlib import Path
        from rlexp.config.keys.agents import experiment_class, find_agent
        from rlexp.errors import UsageError
        from rlexp.user_code.import_guard import GUARD
        assert find_agent("evil") == "EVIL"
        try:
            with GUARD.reading(Path({str(run)!r})):
                experiment_class("EVIL")
        except UsageError as error:
            print(error.message)
    """
    for path, ran in {"site": False, str(site): True}.items():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=run.parent, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("it ran" if ran else "agent EVIL of the package evil cannot be imported")
        assert ran or "PYTHONPATH has no absolute path to it" in done.stdout


def _by_an_installed_package() -> tuple[Callable[[], None], Callable[[], None]]:
    """Return imports of a module by code of gymnasium's: a statement with its name, and a call that got the name."""
    import gymnasium.utils

    def importing(text: str) -> Callable[[], None]:
        return partial(exec, compile(text, str(gymnasium.utils.__file__), "exec"), {})

    return importing(f"import {EVIL}"), importing(f"import importlib; importlib.import_module('{EVIL}')")


def test_a_part_that_was_not_decided_is_not_imported(run: Path) -> None:
    with pytest.raises(ResumeError, match="nobody has allowed"):
        prepare_imports([EVIL], UserModules((), (str(run),), ("other",)))


class TestMemory:
    def test_its_file_is_private_and_bounded(self, project: Path) -> None:
        trained_with(project, f"{MINE}:Env")
        folder = state_folder()
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / FILE_NAME).stat().st_mode & 0o777 == 0o600
        trained_with(project, f"{MINE}:Env")
        assert len(Memory.read().parts) == 1

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "parts": [3], "addresses": []}'])
    def test_a_damaged_file_remembers_nothing(self, text: str, project: Path) -> None:
        trained_with(project, f"{MINE}:Env")
        (state_folder() or project).joinpath(FILE_NAME).write_text(text, encoding="utf-8")
        assert Memory.read() == Memory()
        trained_with(project, f"{MINE}:Env")
        assert len(Memory.read().parts) == 1

    def test_a_file_that_others_may_write_remembers_nothing(self, project: Path) -> None:
        trained_with(project, f"{MINE}:Env")
        (state_folder() or project).joinpath(FILE_NAME).chmod(0o666)
        assert Memory.read() == Memory()

    def test_a_home_that_cannot_be_written_is_said(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (project / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(project / "file"))
        notice = remember_plan(plan_of(project, env=f"{MINE}:Env"))
        assert notice is not None
        assert "cannot be remembered" in notice.message

    def test_storages_are_remembered_without_their_passwords(self, project: Path) -> None:
        url = "s3://key:password@bucket/folder?endpoint_override=storage.example"
        assert remember_plan(plan_of(project, storage=url)) is None
        assert "password" not in ((state_folder() or project) / FILE_NAME).read_text(encoding="utf-8")
        NOTHING_ALLOWED.check_storage(url, project, url)
        other = url.replace("storage.example", "evil.example")
        with pytest.raises(RlexpError, match="no run that you started has used"):
            NOTHING_ALLOWED.check_storage(other, project, other)
        TrustedCode.of((), (), (), [other]).check_storage(other, project, other)


def test_bytes_beyond_the_named_module_are_hashed_too(project: Path, run: Path) -> None:
    package = project / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "envs.py").write_text("class Env: pass\n", encoding="utf-8")
    trained_with(project, "package_of_mine.envs:Env")
    given = named(run, env="package_of_mine.envs:Env", folders=(project,))
    assert NOTHING_ALLOWED.decided(given).decided == ("package_of_mine.envs",)
    (package / "__init__.py").write_text("raise SystemError\n", encoding="utf-8")
    with pytest.raises(ResumeError, match="changed since"):
        NOTHING_ALLOWED.decided(given)
    os.unlink(package / "envs.py")
    os.mkfifo(package / "envs.py")
    with pytest.raises(ResumeError, match="changed since"):
        NOTHING_ALLOWED.decided(given)


class Terminal(StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_allowed"), [("y\n", True), ("n\n", False), ("", False), ("yes\n", True)])
def test_a_terminal_shows_file_and_digest_and_takes_no_for_an_answer(
    answer: str, is_allowed: bool, project: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    given = named(run, env=f"{MINE}:Env", folders=(project,))
    if is_allowed:
        assert trusted_code(None, None, None, None).decided(given).folders == (str(project),)
    else:
        with pytest.raises(ResumeError, match="have not trained with"):
            trusted_code(None, None, None, None).decided(given)
    file = project / f"{MINE}.py"
    assert str(file) in shown.getvalue()
    assert module_file(MINE, [str(project)]) is not None
    assert hashlib.sha256(file.read_bytes()).hexdigest() in shown.getvalue()


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
    assert trusted_code(None, None, None, None).ask is None


def test_a_task_of_strangers_is_not_remembered(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(project, env=f"{MINE}:Env")
    monkeypatch.setenv(TASK_VARIABLE, HandedTask("task", 1, 1, "member").to_text())
    remember_ones_own(plan)
    assert Memory.read() == Memory()
    monkeypatch.delenv(TASK_VARIABLE)
    remember_ones_own(plan)
    assert [part.name for part in Memory.read().parts] == [f"{MINE}:Env"]


@pytest.mark.parametrize("name", ["x; touch owned #", "$(touch owned)", "a'b; touch owned", "a:B\ntouch owned"])
def test_the_options_to_type_are_words_for_a_shell(name: str, run: Path) -> None:
    with pytest.raises(ResumeError) as refused:
        NOTHING_ALLOWED.decided(named(run, name))
    obstacle = NOTHING_ALLOWED.obstacle("CartPole-v1", {}, [name], ())
    assert obstacle is not None
    for hint in (str(refused.value.hint), obstacle.hint):
        subprocess.run(["sh", "-c", f"true {hint.partition(' runs it')[0]}"], cwd=run, check=True)
        assert hint.startswith(f"--import {shlex.quote(name if name.isprintable() else repr(name))}")
        assert len(f"{refused.value.message}{hint}".splitlines()) == 1
    assert list(run.iterdir()) == []


def test_a_message_names_ten_of_a_thousand_modules(run: Path) -> None:
    with pytest.raises(ResumeError, match="and 990 more") as refused:
        NOTHING_ALLOWED.decided(named(run, *(f"module_{number}" for number in range(1000))))
    assert len(str(refused.value.hint)) < 1000


def test_the_source_that_was_allowed_is_run_not_the_bytecode_beside_it(project: Path, run: Path) -> None:
    module = project / f"{MINE}.py"
    for name in (MINE, "helper_of_mine"):
        source, other = project / f"{name}.py", project / "other.py"
        other.write_text("raise SystemError('bytecode')", encoding="utf-8")
        source.write_text("value = 1\n" + ("import helper_of_mine\n" if name == MINE else ""), encoding="utf-8")
        cached = importlib.util.cache_from_source(str(source))
        py_compile.compile(str(other), cfile=cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    modules = TrustedCode(modules=UserModules((MINE,), (str(project),))).decided(named(run, MINE))
    prepare_imports([], modules)
    assert (sys.modules[MINE].value, sys.modules.pop("helper_of_mine").value) == (1, 1)
    assert module.is_file()


def test_installed_packages_find_no_extras_in_a_folder_with_a_module_that_was_allowed(project: Path, run: Path) -> None:
    trained_with(project, f"{MINE}:Env")
    modules = NOTHING_ALLOWED.decided(named(run, env=f"{MINE}:Env", folders=(project,)))
    prepare_imports([MINE], modules)
    (project / f"{EVIL}.py").write_text("value = 1\n", encoding="utf-8")
    import gymnasium.envs.registration as installed

    for statement in (f"import {EVIL}", f"from {EVIL} import value"):
        with pytest.raises(ModuleNotFoundError):
            exec(compile(statement, str(installed.__file__), "exec"), {})
    assert installed.load_env_creator(f"{MINE}:Env") is sys.modules[MINE].Env, "the user's module has registered it"
    exec(compile(f"import {EVIL}", str(project / f"{MINE}.py"), "exec"), {})


def test_a_tracker_is_asked_for_with_its_account(project: Path) -> None:
    mine = plan_of(project, track={"to": ["wandb", "mlflow"], "wandb": {"entity": "me", "project": "p"}})
    assert remember_plan(mine) is None
    for url in addresses_of(mine):
        NOTHING_ALLOWED.check_storage(url, project, url)
    evil = {"entity": "evil", "project": "p"}
    (other,) = addresses_of(plan_of(project, track={"to": ["wandb"], "wandb": evil}))
    with pytest.raises(ResumeError, match="records with the tracker wandb://evil/p") as refused:
        NOTHING_ALLOWED.check_storage(other, project, other)
    assert refused.value.hint == "--allow-storage wandb://evil/p allows it, if it is yours; or --track none"
    assert addresses_of(plan_of(project, track={"to": [], "wandb": evil})) == ()


@pytest.mark.parametrize(
    ("entity", "overrides", "is_typed"),
    [
        (None, ["track.to=[wandb]"], True),
        (None, ["stop.timesteps_total=2"], False),
        (None, [], False),
        ("evil", ["track.to=[wandb]"], False),
        ("evil", ["a=wandb://evil/"], True),
    ],
)
def test_who_types_a_tracker_means_an_account_of_theirs(
    entity: str | None, overrides: list[str], is_typed: bool, project: Path
) -> None:
    plan = plan_of(project, track={"to": ["wandb"], "wandb": {"entity": entity}})
    assert typed_addresses(plan, overrides) == (set(addresses_of(plan)) if is_typed else set())


def test_a_model_of_mujoco_is_a_file_of_the_users(project: Path, run: Path) -> None:
    config = {"env_config": {"xml_file": f"{project}/ant.xml"}, "discretize_actions": 3}
    assert remember_plan(plan_of(project, env="Reacher-v5", config=config)) is None

    def playing(**config: object) -> Named:
        return Named(run, (), (), [experiment("Reacher-v5", discretize_actions=3, **config)])

    assert NOTHING_ALLOWED.decided(playing(env_config={"xml_file": f"{project}/ant.xml"})).decided == ()
    device = {"xml_file": "/dev/zero"}
    for other in (playing(env_config=device), playing(evaluation_config={"env_config": device})):
        with pytest.raises(ResumeError, match="Reacher-v5 with /dev/zero, a file that you have not") as refused:
            NOTHING_ALLOWED.decided(other)
        assert refused.value.hint == "--allow-env Reacher-v5 allows it, if it is yours"
        assert TrustedCode.of((), ["Reacher-v5"], ()).decided(other).decided == ()
    assert NOTHING_ALLOWED.decided(playing(env_config={"xml_file": "reacher.xml"})).decided == ()


def test_what_is_beside_a_run_stays_hidden_while_another_one_is_left(run: Path, tmp_path: Path) -> None:
    first, second = GUARD.reading(run), GUARD.reading(tmp_path / "other" / "run")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (tmp_path / "other").resolve() in GUARD._beside
    second.__exit__(None, None, None)
    assert GUARD._beside == []
