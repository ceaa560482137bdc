"""The addresses of Ray clusters in the environment: a command refuses them, as it starts a Ray of its own."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from rlexp.errors import ResourceError
from rlexp.runs.secrets import masked
from rlexp.sessions.session_processes import SESSION

RAY_ADDRESS: Final = "RAY_ADDRESS"
"""Ray's own variable, which ``ray job submit`` and many clusters set."""
OWN_ADDRESS: Final = "RLEXP_ADDRESS"
"""Ours, which wins."""
LOCAL: Final = "local"
"""The value of both that asks for a Ray of one's own, on this machine."""


def cluster_error(environment: Mapping[str, str]) -> ResourceError | None:
    """Return the error of a command that would have to join the cluster that a variable names; None without one."""
    own, ray = (environment.get(name, "").strip() for name in (OWN_ADDRESS, RAY_ADDRESS))
    if not own and SESSION in environment:  # within an env of a run: it is not the user who has set the address
        return None
    name, address = (OWN_ADDRESS, own) if own else (RAY_ADDRESS, ray)
    if address in ("", LOCAL):
        return None
    return ResourceError(
        f"{name}={masked(address)} names a Ray cluster, and rlexp cannot join one yet",
        f"{OWN_ADDRESS}={LOCAL} trains in a Ray of its own on this machine",
    )


def refuse_cluster(environment: MutableMapping[str, str]) -> None:
    """Raise ResourceError where a variable names a cluster; else remove Ray's, so that nothing joins its address.

    An env may call ``ray.init()``, which would.
    """
    error = cluster_error(environment)
    if error is not None:
        raise error
    environment.pop(RAY_ADDRESS, None)
