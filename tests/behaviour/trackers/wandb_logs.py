"""Reads what wandb has written offline: a log of LevelDB's format, whose records are wandb's own messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32768
HEADER = struct.Struct("<IHB")
"""Of a chunk: its checksum, length and kind."""
FILE_HEADER = 7
FULL, LAST = 1, 4


@dataclass
class WandbLog:
    """One offline run."""

    id: str = ""
    name: str = ""
    group: str = ""
    project: str = ""
    entity: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)
    """The x axis of each metric, or of ``*``."""
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    """Names and types."""
    exit_code: int | None = None


def wandb_logs(run: Path) -> list[WandbLog]:
    """Return the offline runs in the directory of a run of rlexp, the oldest first."""
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_ctime)
    return [_log(file) for file in files]


def _log(file: Path) -> WandbLog:
    log = WandbLog()
    for record in _records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            log.id, log.name, log.group = run.run_id, run.display_name, run.run_group
            log.project, log.entity, log.tags = run.project, run.entity, tuple(run.tags)
            log.config |= _values(run.config.update)
        elif kind == "config":
            log.config |= _values(record.config.update)
        elif kind == "history":
            log.history.append(_values(record.history.item))
        elif kind == "summary":
            log.summary |= _values(record.summary.update)
        elif kind == "metric":
            log.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "artifact":
            log.artifacts.append((record.artifact.name, record.artifact.type))
        elif kind == "exit":
            log.exit_code = record.exit.exit_code
    return log


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, record = file.read_bytes(), FILE_HEADER, b""
    while position + HEADER.size <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER.size:
            position += left
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        record += data[position + HEADER.size : position + HEADER.size + length]
        position += HEADER.size + length
        if kind in (FULL, LAST):
            yield Record.FromString(record)
            record = b""
