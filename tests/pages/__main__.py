"""``make docs-test``: run every fenced command of the pages; ``python -m tests.pages [NAME...]`` runs some pages.

Prints a line for each page and each block that was skipped; exit status 1 where a page failed, 2 for an unknown name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pages.page_folder import REPOSITORY
from tests.pages.page_run import PageResult, run_page


def all_pages() -> list[Path]:
    """Return the pages at the top of the repository, then those of ``docs``, without the changelog."""
    top = [path for path in REPOSITORY.glob("*.md") if path.name != "CHANGELOG.md"]
    return [*sorted(top), *sorted((REPOSITORY / "docs").glob("*.md"))]


def main(names: list[str]) -> int:
    """Run the pages with these names, without ``.md``; all where there is none."""
    pages = {page.stem: page for page in all_pages()}
    if unknown := [name for name in names if name not in pages]:
        print(f"no such page: {', '.join(unknown)}; there are {', '.join(pages)}", file=sys.stderr)
        return 2
    print(f"{'page':<24}{'run':>5}{'saved':>7}{'skipped':>9}{'seconds':>9}", flush=True)
    results = [_run(pages[name]) for name in names or pages]
    skipped = [reason for result in results for reason in result.skipped]
    failed = [result.page.name for result in results if result.failure]
    print("".join(f"\nskipped: {reason}" for reason in skipped))
    ran = sum(result.ran for result in results)
    print(f"\n{ran} blocks ran, {len(skipped)} skipped; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _run(page: Path) -> PageResult:
    result = run_page(page)
    row = f"{page.stem:<24}{result.ran:>5}{result.saved:>7}{len(result.skipped):>9}{result.seconds:>9.1f}"
    print(f"{row}  FAILED\n{result.failure}" if result.failure else row, flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
