"""A server that accepts connections is there; one that refuses them for long enough is lost, and nothing waits."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlexp.cluster import joined
from rlexp.cluster.environment import check_loopback
from rlexp.cluster.joined import LOST_AFTER_S, Reachability
from rlexp.errors import ResourceError

MOST_LOOKS = 100_000


class Clock:
    """Time that passes when it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(server: socket.socket, clock: Clock) -> Iterator[Reachability]:
    made = Reachability("127.0.0.1", server.getsockname()[1], clock, interval_s=1.0)
    yield made
    made.close()


def look(watched: Reachability, clock: Clock, until_s: float) -> bool:
    """Look until a time; return whether the server is lost by then."""
    for _ in range(MOST_LOOKS):
        if clock.now_s >= until_s or watched.is_lost():
            break
    return watched.is_lost()


def test_server_that_accepts_is_there(watched: Reachability, clock: Clock) -> None:
    assert not look(watched, clock, 2 * LOST_AFTER_S)


def test_server_that_refuses_is_lost_after_a_while(server: socket.socket, watched: Reachability, clock: Clock) -> None:
    server.close()
    assert not look(watched, clock, LOST_AFTER_S)
    assert look(watched, clock, 2 * LOST_AFTER_S)


def test_server_that_does_not_answer_is_lost(
    watched: Reachability, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reachability, "_is_writable", lambda self: False)
    assert look(watched, clock, 60)


def test_one_success_forgets_the_failures(watched: Reachability, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(Reachability, "_is_writable", lambda self: clock.now_s % 20 > 18)
    assert not look(watched, clock, 4 * LOST_AFTER_S)


def test_silence_is_counted_from_the_first_try_that_failed(
    server: socket.socket, watched: Reachability, clock: Clock
) -> None:
    while clock.now_s < 10:
        assert watched.silent_s() <= 1
    server.close()
    since_s = clock.now_s
    while clock.now_s < 20:
        assert watched.silent_s() <= clock.now_s - since_s + 1
    assert watched.silent_s() >= clock.now_s - since_s - 3


def test_server_that_never_answered_is_not_silent(server: socket.socket, watched: Reachability, clock: Clock) -> None:
    server.close()
    while clock.now_s < 20:
        assert watched.silent_s() == 0


def test_process_ends_with_the_head(server: socket.socket, watched: Reachability, clock: Clock) -> None:
    codes = list[int]()

    def pause(seconds: float) -> None:
        assert not codes
        if clock.now_s > 2 * LOST_AFTER_S:
            server.close()

    joined._watch(lambda: watched, pause, codes.append)
    assert codes == [1]
    assert 3 * LOST_AFTER_S <= clock.now_s < 4 * LOST_AFTER_S


def test_machine_whose_processes_cannot_connect_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    check_loopback()
    monkeypatch.setattr("rlexp.cluster.environment.LOOPBACK", "203.0.113.1")  # of no machine: RFC 5737
    with pytest.raises(ResourceError, match="no usable loopback interface") as caught:
        check_loopback()
    assert str(caught.value.hint).startswith("ip link set lo up")


def test_run_without_any_network_ends_at_once(tmp_path: Path) -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may make no network namespace")
    file = tmp_path / "e.yaml"
    file.write_text("e: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 10}}")
    words = [*alone, sys.executable, "-m", "rlexp", "run", str(file), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "no usable loopback interface" in done.stderr
    assert not (tmp_path / "out").exists()
