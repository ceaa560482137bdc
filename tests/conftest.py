"""What tests share: one Ray and one Redis per session."""

import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from rlexp.board.servers import OPENERS
from rlexp.cluster.environment import set_ray_environment
from rlexp.cluster.quick_start.raylet import ForkServer
from rlexp.cluster.session import OWN, OwnRay, prepared
from tests.lab.brokers import Mosquitto, QueueServer, RabbitMQ, RedisServer, running_queue, running_redis
from tests.lab.memory_board import open_memory_board

# A shell starts a command in the background without Ctrl-C, and so all that tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before any test module imports ray, which reads its environment then.
set_ray_environment(debug=False)


OPENERS["memory"] = open_memory_board

# Of property tests that do not say how many examples they need; `make test-properties` takes many.
settings.register_profile("make test", max_examples=40, deadline=None)  # the first one may import torch
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("make test")


@pytest.fixture(scope="session", autouse=True)
def _state_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests train with is not remembered for who runs them; see ``own_state`` for tests of what is remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered when the test begins."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True)
def _agents_of_a_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No agent that a test made outlives it; what it patched stays so until they have stopped."""
    yield
    agents = sys.modules.get("tests.lab.agents")  # few tests need its libraries
    while agents is not None and agents.MADE:
        agents.MADE.pop().stop()


@pytest.fixture(scope="session")
def ray_session() -> Iterator[ForkServer | None]:
    """A Ray with four logical CPUs, started at the first test that needs one; what its processes are forked from."""
    with (
        prepared(OWN, debug=False) as joining,
        OwnRay(num_cpus=4, num_gpus=0, debug=False, fork_server=joining.fork_server),
    ):
        yield joining.fork_server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis for all tests of this process, started at the first one that needs it; its client is there too."""
    pytest.importorskip("redis")
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[QueueServer]:
    """A RabbitMQ for all tests of this process; it takes ten seconds to start."""
    pytest.importorskip("pika")
    with running_queue(RabbitMQ()) as server:
        yield server


@pytest.fixture(scope="session")
def mqtt_server() -> Iterator[QueueServer]:
    """A mosquitto for all tests of this process."""
    pytest.importorskip("paho.mqtt.client")
    with running_queue(Mosquitto()) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of that Redis, emptied."""
    redis_server.command("FLUSHALL")
    return redis_server.url
