"""Plain data to YAML that our reader reads back as it was: strings that look like numbers are quoted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rlexp.config.yaml.scalars import FLOAT, INTEGER, UNDERSCORED


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its order; lists on one line."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, and quotes by YAML 1.2 as well as by PyYAML's 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _on_one_line(dumper: yaml.SafeDumper, items: Sequence[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(list, _on_one_line)
_Dumper.add_representer(tuple, _on_one_line)
for _tag, _pattern in (("int", INTEGER), ("float", FLOAT), ("int", UNDERSCORED)):
    _Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern.pattern})$"), list("-+.0123456789")
    )
