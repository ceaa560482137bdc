"""Storages of Optuna: opens the one that ``search.optuna.storage`` names, and no other file of the user's.

Databases and journal files hold JSON; nothing in them is unpickled. (Optuna would unpickle snapshots of a journal in
Redis, and the state of its CMA-ES sampler: the keys refuse both.)
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from rlexp.errors import UsageError
from rlexp.files import open_regular, parse_json
from rlexp.text import masked

if TYPE_CHECKING:
    import optuna

_KEY: Final = "search.optuna.storage"
_TABLE: Final = "studies"
"""The one that Optuna makes first."""
_ATTEMPTS: Final = 10
_SECONDS_BETWEEN_ATTEMPTS: Final = 0.2
_LOCK_TIMEOUT_S: Final = 100.0
"""How long a command waits for another one's write to an SQLite file."""
_LONGEST_LINE: Final = 1 << 20


def open_storage(storage: str, folder: Path) -> optuna.storages.BaseStorage:
    """Return a storage by its URL, or by the path of a journal file; both may be relative to ``folder``.

    Raises UsageError where it cannot be opened, or is a file of another kind.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        if "://" not in storage:
            path = folder / Path(storage).expanduser()
            _refuse_other_file(path, _is_journal(path), "journal file")
            return JournalStorage(JournalFileBackend(str(path)))
        url, options = _database(storage, folder)
        return _with_tables(lambda: RDBStorage(url, engine_kwargs=options))
    except UsageError:
        raise
    except ImportError as error:
        package = str(error.__cause__ or error)
        raise UsageError(
            f"{_KEY} needs a driver that is not installed: {masked(package)}", "install it by pip"
        ) from error
    except Exception as error:  # of the database's driver
        what = f"{type(error).__name__}: {masked(str(error)).splitlines()[0]}"
        hint = "start the database, or correct the URL: sqlite:///study.db, postgresql://user:password@host/database"
        raise UsageError(f"{_KEY} cannot be opened: {what}", hint) from error


def _with_tables(make: Callable[[], optuna.storages.BaseStorage]) -> optuna.storages.BaseStorage:
    """Return a database's storage; when two commands make its tables at once, one of them gets an error first."""
    from sqlalchemy.exc import DBAPIError

    for _ in range(_ATTEMPTS):
        try:
            return make()
        except DBAPIError:
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
    return make()


def _database(storage: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the URL of a database with an absolute path, and the options of its connections."""
    from sqlalchemy.engine import make_url

    url = make_url(storage)
    if url.get_backend_name() != "sqlite":
        return storage, {"pool_pre_ping": True}
    if url.query or not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise UsageError(f"{_KEY} must name a file, as in sqlite:///study.db", "leave it out for a study in memory")
    path = folder / url.database
    _refuse_other_file(path, _is_database(path), "SQLite database")
    return str(url.set(database=str(path))), {"connect_args": {"timeout": _LOCK_TIMEOUT_S}}


def _refuse_other_file(path: Path, is_study: bool, kind: str) -> None:
    """Raise UsageError for a file that is not one of Optuna's: an experiment file may come from anywhere."""
    if not path.parent.is_dir():
        raise UsageError(f"{_KEY}: the directory {path.parent} does not exist", "make it, or name a file elsewhere")
    if path.exists() and not is_study:
        raise UsageError(f"{_KEY}: {path} is not a {kind} of Optuna", "name a file that does not exist")


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_S)
        ) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return False
    return not tables or _TABLE in tables


def _is_journal(path: Path) -> bool:
    try:
        with open_regular(path, None) as file:
            line = file.readline(_LONGEST_LINE)
    except OSError:
        return False
    try:
        return not line or "op_code" in parse_json(line)
    except (TypeError, ValueError):
        return False
