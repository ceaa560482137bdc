"""Which tags a person wants to see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from rlexp.errors import UsageError


class TagGlobs:
    """Shell patterns, each for whole tags or for what follows a slash in them; none means all tags."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns

    def match(self, tag: str) -> bool:
        """Tell whether ``tag`` is wanted."""
        return not self._patterns or any(_matches(tag, pattern) for pattern in self._patterns)

    def refuse_unmatched(self, tags: Iterable[str]) -> None:
        """Raise UsageError for a pattern that matches none of ``tags``."""
        tags = sorted(tags)
        for pattern in self._patterns:
            if not any(_matches(tag, pattern) for tag in tags):
                raise UsageError(f"no tag matches {pattern}", _hint(pattern, tags))


def _matches(tag: str, pattern: str) -> bool:
    return fnmatchcase(tag, pattern) or fnmatchcase(tag, f"*/{pattern}")


def _hint(pattern: str, tags: Sequence[str]) -> str:
    endings = {tag.rsplit("/", 1)[-1]: tag for tag in tags}
    near = get_close_matches(pattern, [*tags, *endings], n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"the tags are {', '.join(tags[:5])}{' …' if len(tags) > 5 else ''}" if tags else "there are no tags"
