"""What ``board check`` says of a server: by facts that are made up, since no server shows all of them."""

from dataclasses import replace

import pytest

from rlexp.board.messages.address import parse_address
from rlexp.board.messages.errors import BoardLostError
from rlexp.board.servers.probes import Obstacle, Reach, ReachError, RedisFacts, Speed
from rlexp.terminal.board_check import Finding, Level, reach_findings, refused, server_findings, unreachable

GIB = 1 << 30
ABOUT = {"maxmemory": str(GIB), "used_memory": "1000000", "maxmemory_policy": "noeviction", "maxclients": "1000"}
FACTS = RedisFacts(
    server="redis",
    version=(7, 2, 4),
    mode="standalone",
    role="master",
    user="trainer",
    missing={"actor": [], "trainer": [], "client": []},
    rules_server=False,
    clock_offset_s=-0.1,
    speed=Speed(0.001, 5e7, 4 << 20),
    about=ABOUT,
)
ADDRESS = parse_address("redis://:hidden@10.0.0.1")
DAY_S = 86400.0


def found(check: str, facts: RedisFacts) -> Finding:
    (finding,) = [finding for finding in server_findings(facts) if finding.check == check]
    return finding


def test_good_server_has_no_warning() -> None:
    assert {finding.level for finding in server_findings(FACTS)} == {Level.OK}


@pytest.mark.parametrize(
    ("check", "level", "change", "words"),
    [
        ("server", Level.PROBLEM, {"version": (6, 0, 16)}, "redis 6.0.16"),
        ("server", Level.PROBLEM, {"role": "replica"}, "only reads"),
        ("server", Level.WARNING, {"mode": "cluster"}, "cluster"),
        ("rights", Level.WARNING, {"rules_server": True}, "erase"),
        ("rights", Level.OK, {"missing": {"actor": [], "trainer": ["see the tasks"]}}, "user trainer can be actor"),
        ("rights", Level.PROBLEM, {"missing": {"actor": ["send fragments"]}}, "as actor it may not send fragments"),
        ("rights", Level.UNKNOWN, {"missing": None}, "does not say"),
        ("round trip", Level.WARNING, {"speed": Speed(0.4, None, 0)}, "400.0 ms"),
        ("largest message", Level.PROBLEM, {"speed": Speed(0.1, 1e6, 1 << 20, 4 << 20, "too long")}, "too long"),
        ("memory", Level.UNKNOWN, {"about": None}, "may not ask"),
        ("memory", Level.PROBLEM, {"about": {**ABOUT, "maxmemory_policy": "volatile-lru"}}, "volatile-lru"),
        ("memory", Level.OK, {"about": {"maxmemory": "0", "maxmemory_policy": "allkeys-lru"}}, "no limit"),
        ("memory", Level.WARNING, {"about": {**ABOUT, "maxmemory": "30000000"}}, "of 30.0 MB"),
        ("persistence", Level.PROBLEM, {"about": {**ABOUT, "rdb_last_bgsave_status": "err"}}, "may refuse"),
        ("persistence", Level.WARNING, {"about": {**ABOUT, "aof_enabled": "1"}}, "appendonly"),
        ("connections", Level.WARNING, {"about": {**ABOUT, "maxclients": "30", "connected_clients": "25"}}, "25 of 30"),
        ("clock", Level.WARNING, {"clock_offset_s": 4000.0}, "ahead"),
    ],
)
def test_each_fact_that_matters_is_told_with_its_remedy(
    check: str, level: Level, change: dict[str, object], words: str
) -> None:
    finding = found(check, replace(FACTS, **change))  # type: ignore[arg-type]
    assert finding.level is level
    assert words in finding.text
    assert level is Level.OK or finding.hint


@pytest.mark.parametrize(
    ("reach", "level", "words"),
    [
        (Reach("127.0.0.1", True, 0.01), Level.OK, "this machine"),
        (Reach("10.0.0.1", True, 0.01), Level.WARNING, "reads the password"),
        (Reach("8.8.8.8", False, 0.01), Level.PROBLEM, "reads the password"),
        (Reach("8.8.8.8", False, 0.01, "TLSv1.3", 90 * DAY_S), Level.OK, "TLSv1.3"),
        (Reach("8.8.8.8", False, 0.01, "TLSv1.3", 3 * DAY_S), Level.WARNING, "TLSv1.3"),
    ],
)
def test_encryption_is_judged_by_the_way_it_goes(reach: Reach, level: Level, words: str) -> None:
    (tls,) = [finding for finding in reach_findings(ADDRESS, reach) if finding.check == "TLS"]
    assert (tls.level, words in tls.text) == (level, True)


def test_server_without_password_is_told() -> None:
    reach = Reach("10.0.0.1", True, 0.01)
    assert "password" in [finding.check for finding in reach_findings(parse_address("redis://10.0.0.1"), reach)]
    assert "password" not in [finding.check for finding in reach_findings(ADDRESS, reach)]


@pytest.mark.parametrize("obstacle", list(Obstacle))
def test_every_obstacle_has_a_remedy(obstacle: Obstacle) -> None:
    assert unreachable(ReachError(obstacle, "why")).hint


def test_server_that_hangs_up_may_want_tls() -> None:
    hint = refused(ADDRESS, BoardLostError("closed")).hint
    assert hint is not None
    assert "rediss://" in hint
