"""Where and when the rows of a trial are made, by the names that Tune has for it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from ray.util import get_node_ip_address

_EXPERIMENT_ID: Final = re.compile("[0-9a-f]{32}")


class RowOrigin:
    """Knows the process that makes a trial's rows, and the row of the checkpoint that it began from."""

    def __init__(self, trial_name: str, restored: Mapping[str, Any] | None) -> None:
        """Begin from the checkpoint with the row ``restored``; its experiment_id is kept if it is the trial's own."""
        self._restored = restored or {}
        is_own = self._restored.get("trial_name") == trial_name
        known = str(self._restored.get("experiment_id")) if is_own else ""
        self._process = {
            "trial_name": trial_name,
            "experiment_id": known if _EXPERIMENT_ID.fullmatch(known) else uuid4().hex,
            "hostname": socket.gethostname(),
            "node_ip": get_node_ip_address(),  # type: ignore[no-untyped-call]
            "pid": os.getpid(),
        }

    def facts(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what belongs to a row that is made now."""
        now = datetime.now().astimezone()
        return {
            "date": now.isoformat(timespec="seconds"),
            "timestamp": int(now.timestamp()),
            **self._process,
            "time_since_restore": row["time_total_s"] - self._restored.get("time_total_s", 0.0),
            "timesteps_since_restore": row["timesteps_total"] - self._restored.get("timesteps_total", 0),
            "iterations_since_restore": row["training_iteration"] - self._restored.get("training_iteration", 0),
        }
