"""Shared weights whose readers are in the process of a test, which writes them as well."""

from __future__ import annotations

from dataclasses import fields

from rlexp.rollout.shared_weights import WeightsHandle, WeightsReader


class ReadHere(WeightsHandle):
    """Opens the memory in the writer's own process."""

    def open(self) -> WeightsReader | None:
        return self.open_anywhere()


def read_here(handle: WeightsHandle) -> ReadHere:
    """Return ``handle`` for a reader in this process."""
    return ReadHere(**{field.name: getattr(handle, field.name) for field in fields(handle)})
