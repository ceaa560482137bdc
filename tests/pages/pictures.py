"""``make pictures``: the pictures in ``docs/images``, made by the commands that stand beside them.

``run.svg`` is a recording of ``rlexp run experiments/cartpole-apex.yaml``; ``report.png`` is the report of
``rlexp compare --html``, photographed by Chromium; ``peers.svg`` is the chart of the README, from the tables of a page.
Takes three minutes on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.pages.page_folder import REPOSITORY
from tests.pages.peers_chart import PICTURE, drawn_chart
from tests.pages.recording import Frame, moving_svg, record

IMAGES = REPOSITORY / "docs" / "images"
WIDTH, HEIGHT = 100, 24
_RUN: Final = ("rlexp", "run", "experiments/cartpole-apex.yaml")
_GRID: Final = (
    *("rlexp", "run", "experiments/cartpole-dqn.yaml", "--name", "lr", "-q", "-o", "num_samples=3"),
    *(
        "-o",
        "config.lr={grid_search: [1e-3, 3e-4]}",
        "-o",
        "stop.episode_reward_mean=500",
        "-o",
        "stop.timesteps_total=80000",
    ),
)
_REPORT: Final = ("rlexp", "compare", "results/lr", "--html", "report.html")
_FRAMES: Final = 14
_LIVE: Final = "bottleneck"
"""What only the live display says, neither the lines before it nor the summary."""
_SECONDS: Final = (0.7, 5.0)
"""How long a frame is shown, and the last one."""


def main(names: Sequence[str]) -> None:
    """Write the pictures with these names, ``run``, ``report`` and ``peers``; all if there is none."""
    if not names or "peers" in names:
        PICTURE.write_text(drawn_chart(), encoding="utf-8")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "RLEXP_OUT": "results"}
    environment.pop("NO_COLOR", None)
    with TemporaryDirectory(prefix="pictures-") as folder:
        shutil.copytree(REPOSITORY / "experiments", Path(folder, "experiments"))
        if not names or "run" in names:
            frames = record(_RUN, folder, environment, WIDTH, HEIGHT)
            svg = moving_svg(chosen(frames), " ".join(_RUN), WIDTH)
            (IMAGES / "run.svg").write_text(svg, encoding="utf-8")
        if not names or "report" in names:
            for command in (_GRID, _REPORT):
                subprocess.run(command, cwd=folder, env=environment, check=True)
            photograph(Path(folder, "report.html"), IMAGES / "report.png")


def chosen(frames: list[Frame]) -> list[tuple[Frame, float]]:
    """Return the start, the live display at equal distances in time, and the summary, each with its seconds."""
    *before, last = frames
    lively = [frame for frame in before if any(_LIVE in row for row in frame.rows)]
    begin_s, end_s = lively[0].at_s, lively[-1].at_s
    times = [begin_s + (end_s - begin_s) * number / (_FRAMES - 1) for number in range(_FRAMES)]
    picked = [min(lively, key=lambda frame: abs(frame.at_s - at_s)) for at_s in times]
    return [(before[0], _SECONDS[0]), *((frame, _SECONDS[0]) for frame in picked), (last, _SECONDS[1])]


def photograph(page: Path, picture: Path) -> None:
    """Let Chromium draw a page, without a window and without the network; raises OSError where it is missing."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise OSError("no chromium here: apt install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    size = ["--window-size=1100,1000", f"--screenshot={picture}"]
    subprocess.run([chromium, *options, *size, page.as_uri()], check=True, stderr=subprocess.DEVNULL, timeout=120)


if __name__ == "__main__":
    main(sys.argv[1:])
