"""``python -m tests.drills``; see the package."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

import tests.drills
from tests.drills import (  # noqa: F401 - each registers its drills
    board_churn,
    board_malice,
    board_networks,
    board_tenants,
    boards,
    circumstances,
    endurance,
    malice,
    signals,
    strangers,
    sweeps,
    workers,
)
from tests.drills.scene import DRILLS, Drill, Scene


def play(drill: Drill) -> bool:
    """Run one drill; print how it went, and return whether it did not fail: one that needs a server may be skipped."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="d-", ignore_cleanup_errors=True) as folder:
        scene = Scene(Path(folder))
        try:
            evidence, verdict = drill.play(scene), "PASS"
            if lingering := scene.lingering():
                evidence, verdict = f"still there {lingering}", "FAIL"
        except pytest.skip.Exception as missing:
            evidence, verdict = str(missing), "SKIP"
        except (Exception, pytest.fail.Exception) as error:
            evidence, verdict = f"{type(error).__name__}: {error}", "FAIL"
        finally:
            scene.close()
    print(f"{verdict} {drill.number:>3} {drill.name:<22} {time.monotonic() - started:5.1f} s  {evidence}", flush=True)
    return verdict != "FAIL"


def main() -> int:
    """List drills or run them; return how many failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills", description=tests.drills.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is")
    run = commands.add_parser("run", help="run some of them")
    run.add_argument("names", nargs="*", metavar="NAME", help="which")
    run.add_argument("--all", action="store_true", help="every one that takes a minute at most")
    run.add_argument("--long", action="store_true", help="only those that take minutes")
    run.add_argument("--twice", action="store_true", help="and all of them again")
    args = parser.parse_args()
    # A shell lets what runs in the background ignore SIGINT, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    drills = sorted(DRILLS.values(), key=lambda drill: drill.number)
    if args.command == "list":
        for drill in drills:
            print(f"{drill.number:>3} {drill.name:<22} {'long' if drill.is_long else '':<5}{drill.about}")
        return 0
    if unknown := set(args.names) - set(DRILLS):
        parser.error(f"there is no drill {', '.join(sorted(unknown))}")
    if bool(args.names) == args.all:
        parser.error("name drills, or say --all")
    chosen = [drill for drill in drills if drill.name in args.names or (args.all and drill.is_long == args.long)]
    failed = sum(not play(drill) for drill in chosen * (2 if args.twice else 1))
    print(f"{failed} of {len(chosen) * (2 if args.twice else 1)} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
