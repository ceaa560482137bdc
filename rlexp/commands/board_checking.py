"""``rlexp board check``: whether a board is fit for training, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.errors import BoardError
from rlexp.board.servers.probes import ReachError, reach
from rlexp.commands.boards import Insecure, required_board
from rlexp.commands.joining import Url
from rlexp.commands.output_options import AsJson, Debug
from rlexp.errors import UsageError
from rlexp.terminal.board_checks import print_findings
from rlexp.terminal.board_findings import Finding, Level, reach_findings, refused, server_findings, unreachable


def check(url: Url = None, insecure: Insecure = False, as_json: AsJson = False, debug: Debug = False) -> None:
    """Examine a board: reach, TLS, rights, speed, largest message, memory. Nothing is left on it.

    Each line is ok, a warning, or a problem with what to do about it; exit code 1 where there is a problem.
    """
    board = required_board(url, insecure)
    findings = list(_findings(board))
    print_findings(str(board), findings, as_json)
    raise typer.Exit(int(any(finding.level is Level.PROBLEM for finding in findings)))


def _findings(board: BoardAddress) -> Iterator[Finding]:
    try:
        from rlexp.board.servers.probes import probe
    except ModuleNotFoundError as error:
        raise UsageError("the client library of Redis is not installed", "pip install 'rlexp[redis]'") from error
    try:
        yield from reach_findings(board, reach(board.host, board.port, board.has_tls, board.ca_file))
    except ReachError as error:
        yield unreachable(error)
        return
    try:
        yield from server_findings(probe(board))
    except BoardError as error:
        yield refused(board, error)
