"""What the nodes of a cluster need for a trial whose actors join over a board."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlexp.machine import Cluster
from rlexp.sessions.cluster_report import REACH_HINT
from rlexp.sessions.probe import Question
from rlexp.transport.address import BoardAddress, ServerAddress
from rlexp.transport.opening import client_modules
from rlexp.transport.tokens import MASTER_VARIABLE

_SIGNATURES = ("cryptography", "redis")
"""What keys of a board need, and an extra of rlexp that has it."""


def with_board(question: Question, board: BoardAddress | None, environment: Mapping[str, str] = os.environ) -> Question:
    """Return a question that also asks each node for what the trainer's end of ``board`` needs there."""
    if board is None:
        return question
    modules = client_modules(board)
    if MASTER_VARIABLE in environment:
        modules = dict([_SIGNATURES]) | modules
    servers = dict(_servers(board))
    hints = {module: f"pip install 'rlexp[{extra}]' on every node" for module, extra in modules.items()}
    return replace(
        question,
        packages=(*question.packages, *modules),
        servers={name: (server.host, server.port) for name, server in servers.items()},
        files=tuple(dict.fromkeys(os.path.abspath(server.ca_file) for server in servers.values() if server.ca_file)),
        hints={**hints, **{name: _hint(server) for name, server in servers.items()}},
    )


def loopback_notices(board: BoardAddress | None, cluster: Cluster) -> Iterator[str]:
    """Yield a sentence for each server that is another one for each node, as far as the address says."""
    if board is None or all(node.is_driver or not (node.machine.cpus or node.machine.gpus) for node in cluster.nodes):
        return
    for name, server in _servers(board):
        if server.is_loopback:
            yield f"{name}: a node means itself by {server.host}; the trial finds its task only through a tunnel there"


def _servers(board: BoardAddress) -> Iterator[tuple[str, ServerAddress]]:
    """Yield what a connection is made to, by the name that messages have."""
    shown = board.without_passwords()
    yield f"the board at {replace(shown, queue=None)}", shown
    if shown.queue is not None and shown.queue.kind != "pubsub":
        yield f"the queue at {shown.queue}", shown.queue


def _hint(server: ServerAddress) -> str:
    if not server.is_loopback:
        return REACH_HINT
    return f"a node means itself by {server.host}: give an address of the server that every node reaches"
