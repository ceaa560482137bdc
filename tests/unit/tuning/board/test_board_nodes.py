"""What each node of a cluster is asked for a board, and what a loopback address means there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.board.messages.address import BoardAddress, QueueAddress
from rlexp.board.trainer.trial import loopback_notices, with_board
from rlexp.cluster.probe import Question
from rlexp.cluster.room import Cluster, Machine, Node

BOARD = BoardAddress("redis", "10.0.0.7", 6379, password="geheim")
QUEUE = QueueAddress("amqps", "10.0.0.8", 5671, username="me", password="geheim", ca_file="ca.pem")


def node(name: str, cpus: int = 4, is_driver: bool = False) -> Node:
    return Node(name, Machine(cpus, 0, 0, 0), is_driver=is_driver)


def test_nodes_are_asked_for_servers_client_libraries_and_certificates() -> None:
    board = BoardAddress("redis", "10.0.0.7", 6379, password="geheim", queue=QUEUE)
    question = with_board(Question(packages=("ale_py",)), board, {})
    assert question.packages == ("ale_py", "redis", "pika")
    assert list(question.servers.values()) == [("10.0.0.7", 6379), ("10.0.0.8", 5671)]
    assert question.files == (str(Path("ca.pem").absolute()),)
    assert question.hints["pika"] == "pip install 'rlexp[rabbitmq]' on every node"
    assert "every node reaches" in question.hints["the board at redis://10.0.0.7:6379"]
    assert "geheim" not in repr(question)


def test_keys_need_signatures_on_every_node() -> None:
    assert with_board(Question(), BOARD, {"RLEXP_BOARD_MASTER": "x"}).packages == ("cryptography", "redis")


def test_topic_of_google_is_no_server_of_its_own() -> None:
    board = BoardAddress("redis", "10.0.0.7", 6379, queue=QueueAddress("pubsub", "project", path="topic"))
    question = with_board(Question(), board, {})
    assert list(question.servers.values()) == [("10.0.0.7", 6379)]
    assert "google.pubsub_v1" in question.packages


def test_nothing_more_is_asked_without_a_board() -> None:
    assert with_board(Question(), None, {"RLEXP_BOARD_MASTER": "x"}) == Question()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_another_machine_on_each_node(host: str) -> None:
    board = BoardAddress("redis", host, 6379)
    (hint,) = [hint for name, hint in with_board(Question(), board, {}).hints.items() if "board at" in name]
    assert hint.startswith(f"a node means itself by {host}")
    several = Cluster((node("10.0.0.1", is_driver=True), node("10.0.0.2")))
    assert len(list(loopback_notices(board, several))) == 1


def test_no_notice_where_no_trial_can_be_elsewhere_or_the_address_is_of_the_network() -> None:
    local = BoardAddress("redis", "127.0.0.1", 6379)
    alone = Cluster((node("10.0.0.1", is_driver=True), node("10.0.0.2", cpus=0)))
    several = Cluster((node("10.0.0.1", is_driver=True), node("10.0.0.2")))
    assert list(loopback_notices(local, alone)) == []
    assert list(loopback_notices(BOARD, several)) == []
    assert list(loopback_notices(None, several)) == []
