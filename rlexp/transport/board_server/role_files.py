"""The files that a shell reads to be a trainer, a client or an actor of a served board."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlexp.transport.address import BOARD_VARIABLE, PASSWORD_VARIABLE, BoardAddress
from rlexp.transport.board_server.configuration import OWNER, ServerConfiguration
from rlexp.transport.board_server.folder import ServerFolder
from rlexp.transport.boards.access import ACTOR, CLIENT, TRAINER
from rlexp.transport.tokens import MASTER_VARIABLE, TOKEN_VARIABLE


@dataclass(frozen=True)
class RoleFiles:
    """A file for each; whoever has it is what it is for."""

    owner: Path
    trainer: Path
    client: Path
    actors: tuple[Path, ...]


def write_role_files(folder: ServerFolder, configuration: ServerConfiguration, num_actors: int) -> RoleFiles:
    """Write the files of a board with ``configuration``, and of ``num_actors`` actors with a join token each."""
    master = folder.master_key()
    actors = []
    for number in range(1, num_actors + 1):
        name = f"{ACTOR.name}-{number}"
        variables = _variables(configuration.address(ACTOR.name)) | {TOKEN_VARIABLE: master.token(name).to_text()}
        actors.append(folder.write_variables(name, variables))
    trainer = _variables(configuration.address(TRAINER.name)) | {MASTER_VARIABLE: master.to_text()}
    # A client verifies with it what trainers have signed; its user may not send fragments.
    client = _variables(configuration.address(CLIENT.name)) | {TOKEN_VARIABLE: master.token(CLIENT.name).to_text()}
    return RoleFiles(
        owner=folder.write_variables(OWNER, _variables(configuration.address(OWNER))),
        trainer=folder.write_variables(TRAINER.name, trainer),
        client=folder.write_variables(CLIENT.name, client),
        actors=tuple(actors),
    )


def _variables(address: BoardAddress) -> dict[str, str]:
    return {BOARD_VARIABLE: str(address.without_passwords()), PASSWORD_VARIABLE: address.password}
