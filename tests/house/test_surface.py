"""What users type, import and find in files is what it was."""

from pathlib import Path

from tests.house.surface import surface


def test_surface_is_as_recorded() -> None:
    recorded = Path(__file__).with_name("surface.txt").read_text(encoding="utf-8")
    assert surface() == recorded, "wanted? python -m tests.house.surface > tests/house/surface.txt"
