"""What a person or a program sees of a run while it lasts and at its end."""

from rlexp.display.choose import choose_display
from rlexp.display.display import Display
from rlexp.display.json_lines import JsonDisplay
from rlexp.display.live import LiveDisplay
from rlexp.display.plain import PlainDisplay
from rlexp.display.quiet import QuietDisplay

__all__ = ["Display", "JsonDisplay", "LiveDisplay", "PlainDisplay", "QuietDisplay", "choose_display"]
