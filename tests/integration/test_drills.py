"""The fast drills; ``make drills`` runs all of them."""

from __future__ import annotations

import pytest

from tests.drills.__main__ import play
from tests.drills.scene import DRILLS


@pytest.mark.ray
@pytest.mark.parametrize("name", [drill.name for drill in DRILLS.values() if drill.pace == "fast"])
def test_a_fast_drill_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    passed = play(DRILLS[name])
    assert passed, capsys.readouterr().out
