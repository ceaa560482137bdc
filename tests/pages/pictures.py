"""``make pictures``: the pictures in ``docs/images``, made by the commands that stand beside them.

``run.svg`` is a recording of ``rlexp run experiments/cartpole-apex.yaml``, ``errors.svg`` of ``rlexp check`` with a
wrong file. ``report.png`` is the report of ``rlexp compare --html``, photographed by Chromium. ``peers.svg`` is the
chart of the README, from the tables of a page. ``play-*.gif`` are episodes filmed by ``rlexp evaluate --video``, made
smaller by the ffmpeg of imageio-ffmpeg. All take about ten minutes on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    *("rlexp", "run", "experiments/cartpole-dqn.yaml", "--name", "lr", "-q", "-o", "num_seeds=3"),
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
_WRONG: Final = """\
lander:
  run: APEX
  env: LunarLandr-v3
  stop: {episode_reward_mean: 200, timestep_total: 500000}
  config:
    num_workers: two
    n_setp: 3
    lr: [1e-3, 5e-4]
    model: {fcnet_hidens: [256]}
    double_q: 'yes'
"""
"""A file in which much is wrong."""
_CHECK: Final = ("rlexp", "check", "lander.yaml")
_ERRORS_WIDTH: Final = 92
_ERRORS_HEIGHT: Final = 18
_PLAYS: Final = ("cartpole-ppo", "lunarlander-ppo", "mountaincar-dqn")
"""Experiments whose policies are filmed."""
_GIF: Final = (
    "fps=12,scale=300:-2:flags=lanczos,split[a][b];"
    "[a]palettegen=max_colors=48:stats_mode=diff[p];[b][p]paletteuse=dither=none"
)
_GIF_SECONDS: Final = 8
_FRAMES: Final = 14
_LIVE: Final = "bottleneck"
"""What only the live display says, neither the lines before it nor the summary."""
_SECONDS: Final = (0.7, 5.0)
"""How long a frame is shown, and the last one."""


def main(names: Sequence[str]) -> None:
    """Write the pictures with these names, the words in quotes below; all if there is none."""
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
        if not names or "errors" in names:
            Path(folder, "lander.yaml").write_text(_WRONG, encoding="utf-8")
            *_, last = record(_CHECK, folder, environment, _ERRORS_WIDTH, _ERRORS_HEIGHT, expected=2)
            svg = moving_svg([(last, _SECONDS[1])], " ".join(_CHECK), _ERRORS_WIDTH)
            (IMAGES / "errors.svg").write_text(svg, encoding="utf-8")
        if not names or "play" in names:
            for name in _PLAYS:
                run = ("rlexp", "run", f"experiments/{name}.yaml", "--name", name, "--seed", "1", "-q")
                subprocess.run(run, cwd=folder, env=environment, check=True)
                film(name, Path(folder), environment)


def film(name: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Film an episode of a run's best policy, and write its first seconds as a picture that moves."""
    from imageio_ffmpeg import get_ffmpeg_exe

    command = ("rlexp", "evaluate", f"results/{name}", "--episodes", "1", "--video", f"videos-{name}")
    subprocess.run(command, cwd=folder, env=environment, check=True)
    (video,) = (folder / f"videos-{name}").glob("*.mp4")
    picture = IMAGES / f"play-{name}.gif"
    made = [get_ffmpeg_exe(), "-y", "-loglevel", "error", "-t", str(_GIF_SECONDS), "-i", str(video)]
    subprocess.run([*made, "-vf", _GIF, "-loop", "0", str(picture)], check=True)


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
