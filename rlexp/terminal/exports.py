"""What ``rlexp export`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rlexp.terminal.lines import visible

if TYPE_CHECKING:  # the agents import torch, which most commands do without
    from rlexp.agents.export.export import Export
    from rlexp.agents.export.onnx import Form, Verification


def print_export(export: Export, as_json: bool) -> None:
    """Print what was written, what goes in and out of it, and how it was checked, to stdout."""
    if as_json:
        print(json.dumps(_as_json(export)))
        return
    metadata, verification = export.metadata, export.verification
    print(visible(f"{metadata['agent']} on {metadata['env']}, {export.checkpoint}"))
    forms = [("input", form) for form in verification.inputs] + [("output", form) for form in verification.outputs]
    width = max(len(form.name) for _, form in forms)
    for kind, form in forms:
        print(f"{kind:<8}{form.name:<{width}}  {form.dtype:<7}  [{', '.join(map(str, form.shape))}]")
    print(f"checked  {_checked(verification)}")
    print(visible(f"wrote    {export.file} ({export.num_bytes / 1e6:.2f} MB)"))


def _checked(verification: Verification) -> str:
    counts = verification.num_observations
    sources = ", ".join(f"{count} {source}" for source, count in counts.items())
    difference = f"largest difference {verification.largest_difference:.1e}"
    return f"on {sum(counts.values())} observations ({sources}): {_actions(verification)}{difference}"


def _actions(verification: Verification) -> str:
    match verification.num_other_actions:
        case None:
            return ""
        case 0:
            return "equal actions, "
        case number:
            return f"actions differ on {number}, where values tie, "


def _as_json(export: Export) -> dict[str, object]:
    verification = export.verification
    return {
        "file": str(export.file),
        "bytes": export.num_bytes,
        "checkpoint": str(export.checkpoint),
        "metadata": export.metadata,
        "inputs": [_form(form) for form in verification.inputs],
        "outputs": [_form(form) for form in verification.outputs],
        "observations": sum(verification.num_observations.values()),
        "largest_difference": verification.largest_difference,
        "other_actions": verification.num_other_actions,
    }


def _form(form: Form) -> dict[str, object]:
    return {"name": form.name, "dtype": form.dtype, "shape": list(form.shape)}
