"""What a person or a program sees of a run while it lasts and at its end."""

from rlexp.tuning.display.choose import choose_display
from rlexp.tuning.display.display import Display
from rlexp.tuning.display.json_lines import JsonDisplay
from rlexp.tuning.display.live import LiveDisplay
from rlexp.tuning.display.plain import PlainDisplay
from rlexp.tuning.display.quiet import QuietDisplay

__all__ = ["Display", "JsonDisplay", "LiveDisplay", "PlainDisplay", "QuietDisplay", "choose_display"]
