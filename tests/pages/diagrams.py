"""``python -m tests.pages.diagrams``: the diagrams of the pages, as SVG from the text below.

Not Mermaid: its script would come from another server, and the site loads nothing from others. A diagram has a
background of its own, light or dark as the reader's system is, so that it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from tests.pages.page_folder import REPOSITORY

IMAGES: Final = REPOSITORY / "docs" / "images"
_LINE: Final = 17
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2933; }
.title { font-weight: 600; }
.small { font-size: 11.5px; fill: #52606d; }
.page { fill: #ffffff; stroke: #d3dae0; }
.group { fill: #f3f6f9; stroke: #b8c4ce; stroke-dasharray: 5 4; }
.box { fill: #e4eefb; stroke: #3d7cc9; }
.store { fill: #e3f4e8; stroke: #3a9a5c; }
.learn { fill: #fdeedb; stroke: #cf8425; }
.arrow { fill: none; stroke: #52606d; stroke-width: 1.6; }
.head { fill: #52606d; }
.back { stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
text { fill: #e6ebf0; }
.small { fill: #aab6c2; }
.page { fill: #161b22; stroke: #30363d; }
.group { fill: #1d242d; stroke: #45505c; }
.box { fill: #173256; stroke: #5b9be6; }
.store { fill: #15392a; stroke: #4fb277; }
.learn { fill: #45300f; stroke: #e0a04c; }
.arrow { stroke: #aab6c2; }
.head { fill: #aab6c2; }
}
"""


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines below it; ``kind`` is a class of the style."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "box"

    def svg(self) -> Iterator[str]:
        """Yield its elements; a group has its title in its corner."""
        yield (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="7"/>'
        )
        if self.kind == "group":
            yield _text(self.x + 12, self.y + 21, self.title, "title", "start")
            return
        middle = self.x + self.width // 2
        top = self.y + (self.height - _LINE * len(self.lines)) // 2 + 5
        yield _text(middle, top, self.title, "title")
        for number, line in enumerate(self.lines, 1):
            yield _text(middle, top + _LINE * number, line, "small")


@dataclass(frozen=True)
class Arrow:
    """A line through points, with a head at its end, and a text beside it; ``back`` ones are dashed."""

    points: tuple[tuple[int, int], ...]
    text: str = ""
    at: tuple[int, int] = (0, 0)
    """The middle of the text."""
    back: bool = False

    def svg(self) -> Iterator[str]:
        """Yield its elements."""
        (before_x, before_y), (x, y) = self.points[-2:]
        along_x, along_y = (x > before_x) - (x < before_x), (y > before_y) - (y < before_y)
        path = " ".join(f"{left},{top}" for left, top in (*self.points[:-1], (x - 6 * along_x, y - 6 * along_y)))
        yield f'<polyline class="arrow{" back" if self.back else ""}" points="{path}"/>'
        base_x, base_y = x - 9 * along_x, y - 9 * along_y
        corners = f"{x},{y} {base_x - 5 * along_y},{base_y - 5 * along_x} {base_x + 5 * along_y},{base_y + 5 * along_x}"
        yield f'<polygon class="head" points="{corners}"/>'
        for number, line in enumerate(filter(None, self.text.split("\n"))):
            yield _text(self.at[0], self.at[1] + 15 * number, line, "small")


@dataclass(frozen=True)
class Diagram:
    """One picture; ``about`` is what a screen reader says."""

    about: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    notes: Sequence[tuple[int, int, str]] = field(default=())

    def svg(self) -> str:
        """Return the file's text."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">',
            f"<title>{escape(self.about)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="9"/>',
            *(part for box in self.boxes for part in box.svg()),
            *(part for arrow in self.arrows for part in arrow.svg()),
            *(_text(x, y, text, "small", "start") for x, y, text in self.notes),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"


def _text(x: int, y: int, text: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


APEX: Final = Diagram(
    "Ape-X: workers sample fragments, replay shards keep the rows, the learner trains on batches that shards draw, and "
    "returns priorities and weights",
    860,
    360,
    [
        Box(20, 50, 190, 250, "processes of workers", kind="group"),
        Box(330, 50, 190, 250, "processes of shards", kind="group"),
        Box(640, 50, 200, 250, "the trial's process", kind="group"),
        Box(
            36, 86, 158, 88, "① RolloutWorker 1", ("envs, policy with its ε,", "n-step rows and their", "own TD errors")
        ),
        Box(36, 200, 158, 84, "① RolloutWorker N", ("with the last ε", "of the ladder")),
        Box(346, 86, 158, 88, "③ ReplayShard 1", ("rows, priorities,", "sum tree"), "store"),
        Box(346, 200, 158, 84, "③ ReplayShard K", ("each row is in", "one shard only"), "store"),
        Box(656, 86, 168, 62, "② optimizer.step()", ("passes references on",), "learn"),
        Box(656, 184, 168, 100, "④ LearnerThread", ("⑤ DQNLearner: loss,", "Adam, target network"), "learn"),
    ],
    [
        Arrow(((194, 130), (346, 130)), "fragments", (270, 122)),
        Arrow(((194, 242), (346, 242)), "fragments", (270, 234)),
        Arrow(((504, 130), (590, 130), (590, 200), (656, 200))),
        Arrow(((504, 222), (656, 222)), "batches", (584, 238)),
        Arrow(((656, 262), (504, 262)), "TD errors as\nnew priorities", (580, 278), back=True),
        Arrow(
            ((740, 284), (740, 330), (115, 330), (115, 284)),
            "weights, for a worker that has taken max_weight_sync_delay steps",
            (428, 324),
            back=True,
        ),
        Arrow(((740, 148), (740, 184))),
    ],
    [(20, 30, "All parts run side by side. With replay_storage: local the shards are in the trial's process.")],
)

CLUSTER: Final = Diagram(
    "A trial on a cluster: its bundle with learner and shards is on one node, workers are on any node, results go to "
    "the machine of the command",
    860,
    366,
    [
        Box(20, 56, 200, 290, "node of the command", kind="group"),
        Box(300, 56, 250, 290, "node of the trial", kind="group"),
        Box(630, 56, 210, 132, "node with workers", kind="group"),
        Box(630, 214, 210, 132, "node with workers", kind="group"),
        Box(36, 92, 168, 80, "rlexp run --address", ("the driver: Tune,", "display, Ctrl-C"), "box"),
        Box(36, 256, 168, 74, "OUT/NAME", ("rows, checkpoints,", "run.json"), "store"),
        Box(316, 92, 218, 62, "trial's process", ("optimizer, learner",), "learn"),
        Box(316, 180, 100, 66, "shard 1", ("replay",), "store"),
        Box(434, 180, 100, 66, "shard K", ("replay",), "store"),
        Box(316, 272, 218, 58, "workers", ("as many as there is room for",)),
        Box(646, 92, 84, 80, "gatherer", ("one a node",), "store"),
        Box(748, 92, 78, 80, "workers", ("1 to 16",)),
        Box(646, 250, 84, 80, "gatherer", ("one a node",), "store"),
        Box(748, 250, 78, 80, "workers", ("17 to 32",)),
    ],
    [
        Arrow(((204, 122), (316, 122)), "starts it,\nasks it\nto stop", (260, 84)),
        Arrow(((316, 142), (250, 142), (250, 292), (204, 292)), "rows,\ncheckpoints", (260, 312), back=True),
        Arrow(((366, 180), (366, 154))),
        Arrow(((484, 180), (484, 154))),
        Arrow(((646, 140), (590, 140), (590, 213), (534, 213)), "fragments", (590, 310)),
        Arrow(((646, 290), (590, 290), (590, 213), (534, 213))),
        Arrow(((748, 132), (730, 132))),
        Arrow(((748, 290), (730, 290))),
        Arrow(((425, 272), (425, 246))),
        Arrow(((534, 110), (630, 110)), "weights", (590, 102), back=True),
    ],
    [
        (
            20,
            34,
            "One placement group of Ray: a bundle for the trial, always on one node, and one for each worker.",
        )
    ],
)

BOARD: Final = Diagram(
    "A board: a client submits a task, a trainer takes it, actors anywhere take seats, send fragments and take weights",
    860,
    366,
    [
        Box(20, 60, 200, 120, "who has an experiment", kind="group"),
        Box(20, 226, 200, 120, "who trains", kind="group"),
        Box(320, 60, 220, 286, "servers that all reach", kind="group"),
        Box(640, 60, 200, 286, "actors, anywhere", kind="group"),
        Box(36, 96, 168, 68, "rlexp submit", ("waits for results",)),
        Box(36, 262, 168, 68, "rlexp join", ("--as trainer:", "replay, learner"), "learn"),
        Box(
            336,
            96,
            188,
            104,
            "board: Redis or Valkey",
            ("tasks, seats and leases,", "signed weights, rows,", "checkpoints"),
            "store",
        ),
        Box(336, 244, 188, 86, "queue of fragments", ("Redis, RabbitMQ, MQTT", "or Pub/Sub"), "store"),
        Box(656, 96, 168, 66, "rlexp join", ("actor in seat 1",)),
        Box(656, 180, 168, 66, "rlexp join", ("actor in seat 2",)),
        Box(656, 264, 168, 66, "rlexp join", ("actor in seat N",)),
    ],
    [
        Arrow(((204, 118), (336, 118)), "task", (270, 110)),
        Arrow(((336, 144), (204, 144)), "rows, result", (276, 160), back=True),
        Arrow(((204, 276), (296, 276), (296, 186), (336, 186)), "weights,\ncheckpoints", (252, 200)),
        Arrow(((336, 306), (204, 306)), "fragments", (276, 298)),
        Arrow(((524, 118), (656, 118)), "task, weights", (588, 110)),
        Arrow(((656, 144), (524, 144)), "seat, beats", (588, 160)),
        Arrow(((656, 297), (524, 297)), "fragments", (590, 289)),
        Arrow(((656, 213), (600, 213), (600, 270), (524, 270))),
    ],
    [
        (
            20,
            36,
            "Every connection goes out to the servers, also from behind NAT. Both may be the same Redis.",
        )
    ],
)

DIAGRAMS: Final = {"apex": APEX, "cluster": CLUSTER, "board": BOARD}


def main() -> None:
    """Write all of them."""
    for name, diagram in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(diagram.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
