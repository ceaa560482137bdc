"""Runs: their files and the order of these, the points that a restart discards, globs for tags, and followers.

Figures, curves and single points of a tag, compared with slow simple models over all points.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.compare.event_files.gathering import CELLS, FEWEST_FOR_SLOPE, AtStep, LogCurve, Series, Summary
from rlexp.compare.event_files.runs import Follower, LogRun, find_runs, is_wanted, refuse_unmatched
from rlexp.compare.event_files.shapes import POINT
from rlexp.errors import UsageError
from rlexp.sample_batch import Array
from tests.lab.event_writing import accumulated, frames, points, read, scalar, start_of_run, write

VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))


def timed_points(steps: Array, values: Array) -> Array:
    made = np.zeros(len(steps), POINT)
    made["step"], made["value"], made["wall_time"] = steps, values, np.arange(len(steps))
    return made


@st.composite
def batches(draw: st.DrawFn) -> list[Array]:
    """Points in batches of any size: steps mostly rise, values are mostly finite."""
    values = np.array(draw(st.lists(VALUES, min_size=1, max_size=60)))
    count = draw(st.integers(1, 3000))
    steps = np.cumsum(np.resize(draw(st.lists(st.integers(-1, 1000), min_size=1, max_size=5)), count))
    edges = sorted(draw(st.lists(st.integers(1, count), max_size=6)))
    pieces = np.split(timed_points(steps, np.resize(values, count)), edges)
    return [piece for piece in pieces if len(piece)]


@settings(deadline=None)
@given(batches())
def test_figures_match_all_points_at_once(pieces: list[Array]) -> None:
    summary, everything = Summary(), np.concatenate(pieces)
    for piece in pieces:
        summary.take(piece)
    figures, values = summary.figures(), everything["value"]
    assert figures.points == len(everything)
    assert (figures.first_step, figures.last_step) == (everything["step"][0], everything["step"][-1])
    assert (figures.first_wall_time, figures.last_wall_time) == (0, everything["wall_time"][-1])
    np.testing.assert_equal(figures.last, values[-1])
    if np.isnan(values).all():
        assert (figures.max, figures.max_step, figures.min, figures.min_step) == (None, None, None, None)
    else:
        assert (figures.max, figures.min) == (np.nanmax(values), np.nanmin(values))
        assert figures.max_step == everything["step"][values == np.nanmax(values)][0]
        assert figures.min_step == everything["step"][values == np.nanmin(values)][0]


@settings(deadline=None)
@given(batches())
def test_slope_is_over_last_tenth(pieces: list[Array]) -> None:
    curve, everything = LogCurve(), np.concatenate(pieces)
    for piece in pieces:
        curve.add(piece["step"], piece["value"])
    slope, _ = curve.slope()
    wanted = max(math.ceil(len(everything) / 10), FEWEST_FOR_SLOPE)
    width = math.ceil(len(everything) / CELLS) * 2
    slopes = [least_squares(everything[-tail:]) for tail in range(wanted, wanted + width + 1)]
    if len(everything) <= CELLS:
        slopes = slopes[:1]
    close = [
        other is None if slope is None else other is not None and math.isclose(slope, other, rel_tol=1e-6, abs_tol=1e-6)
        for other in slopes
    ]
    assert any(close), (slope, slopes)


def least_squares(tail: Array) -> float | None:
    """The slope by the textbook."""
    known = tail[np.isfinite(tail["value"])]
    if len(set(known["step"].tolist())) < 2:
        return None
    x = known["step"] - known["step"].astype(float).mean()
    return float((x * (known["value"] - known["value"].mean())).sum() / (x * x).sum())


@settings(deadline=None)
@given(batches(), st.integers(1, 60))
def test_curve_means_are_of_stretches(pieces: list[Array], width: int) -> None:
    curve, values = LogCurve(), np.concatenate(pieces)["value"]
    for piece in pieces:
        curve.add(piece["step"], piece["value"])
    means = curve.means(width)
    assert len(means) <= width
    known = np.isfinite(values)
    if not known.any():
        assert all(map(math.isnan, means))
        return
    assert values[known].min() - 1e-6 <= np.nanmin(means)
    assert np.nanmax(means) <= values[known].max() + 1e-6
    if width == 1:
        assert math.isclose(means[0], values[known].mean(), rel_tol=1e-9, abs_tol=1e-6)
    if len(values) <= width:
        np.testing.assert_array_equal(means, np.where(known, values, math.nan))


def test_long_curve_has_shape_of_points() -> None:
    curve = LogCurve()
    for start in range(0, 100_000, 700):
        steps = np.arange(start, min(start + 700, 100_000))
        curve.add(steps, np.abs(steps - 50_000.0))
    assert curve.points == 100_000
    np.testing.assert_allclose(curve.means(5), [40_000, 20_000, 5_000, 20_000, 40_000], atol=1500)
    slope, over = curve.slope()
    assert slope == pytest.approx(1)
    assert 10_000 <= over <= 10_000 + 2 * 100_000 / CELLS


def test_slope_of_long_curve_is_over_reported_points() -> None:
    rng = np.random.default_rng(0)
    everything = timed_points(np.cumsum(rng.integers(1, 9, 20_000)), rng.normal(size=20_000))
    curve = LogCurve()
    for piece in np.split(everything, np.sort(rng.integers(1, 20_000, 50))):
        if len(piece):
            curve.add(piece["step"], piece["value"])
    slope, over = curve.slope()
    assert 2000 <= over <= 2000 + 2 * 20_000 / CELLS
    assert slope == pytest.approx(least_squares(everything[-over:]), rel=1e-9)


@settings(deadline=None)
@given(batches(), st.integers(-10, 5000))
def test_at_step_matches_slow_model(pieces: list[Array], step: int) -> None:
    at, model = AtStep(step), None
    for piece in pieces:
        at.take(piece)
        for point in piece:
            if point["step"] <= step and (model is None or point["step"] >= model["step"]):
                model = point
    found = at.points()
    assert len(found) == (model is not None)
    if model is not None:
        assert [found[0][name] for name in ("step", "wall_time")] == [model[name] for name in ("step", "wall_time")]


@settings(deadline=None)
@given(batches())
def test_series_has_all_points(pieces: list[Array]) -> None:
    series, everything = Series(), np.concatenate(pieces)
    for piece in pieces:
        series.take(piece)
    for name in ("step", "wall_time", "value"):
        np.testing.assert_array_equal(series.points()[name], everything[name])


FIRST, SECOND = "events.out.tfevents.1.host", "events.out.tfevents.2.host"


def steps(path: Path, tag: str = "loss") -> list[int]:
    return [step for step, _, _ in points(path)[tag]]


def losses(steps: range, wall_time: float = 1.0) -> list[object]:
    return [scalar("loss", step, 0.5, wall_time + index) for index, step in enumerate(steps)]


def test_each_directory_with_event_files_is_a_run(tmp_path: Path) -> None:
    write(tmp_path / "b" / "trial", losses(range(3)), FIRST)
    write(tmp_path / "b" / "trial", losses(range(3, 5), 100), SECOND)
    write(tmp_path / "a", losses(range(1)))
    (tmp_path / "a" / "notes.txt").write_text("no events")
    (tmp_path / "a" / "events.out.tfevents.9.profile-empty").touch()
    runs = find_runs([tmp_path, tmp_path / "a"])
    trial = tmp_path / "b" / "trial"
    assert runs == [
        LogRun(str(tmp_path / "a"), (tmp_path / "a" / FIRST,)),
        LogRun(str(trial), (trial / FIRST, trial / SECOND)),
    ]
    assert steps(trial) == [0, 1, 2, 3, 4]


def test_named_file_of_any_name_is_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, losses(range(3))).rename(tmp_path / "log")
    assert find_runs([path]) == [LogRun(str(path), (path,))]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "does not exist"),
        ("empty", "contains no event files"),
        ("text", "is not an event file"),
    ],
)
def test_paths_without_event_files(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path / "good", losses(range(3)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("cartpole:\n  run: APEX\n")
    with pytest.raises(UsageError, match=message) as error:
        find_runs([tmp_path / "good", tmp_path / name])
    assert error.value.hint


def test_announced_restart_discards_what_tensorboard_discards(tmp_path: Path) -> None:
    write(tmp_path, [*losses(range(10)), start_of_run(6), *losses(range(6, 9))], FIRST)
    write(tmp_path, [start_of_run(4), *losses(range(4, 7))], SECOND)
    assert points(tmp_path) == accumulated(tmp_path)
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
    assert read(tmp_path).taken_back == 9


def test_restart_announced_by_purge_step(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        for suffix, purge_step, span in ((".a", None, range(10)), (".b", 7, range(7, 12))):
            writer = SummaryWriter(str(tmp_path), purge_step=purge_step, filename_suffix=suffix)
            for step in span:
                writer.add_scalar("loss", 1.0, step)
            writer.close()
    assert points(tmp_path) == accumulated(tmp_path)
    assert steps(tmp_path) == list(range(12))


def test_later_file_with_earlier_steps_discards_points(tmp_path: Path) -> None:
    write(tmp_path, [*losses(range(10), 0), *[scalar("other", step, 0.0, 5.0) for step in range(3)]], FIRST)
    write(tmp_path, losses(range(6, 12), 100), SECOND)
    contents = read(tmp_path)
    assert steps(tmp_path) == list(range(12))
    assert steps(tmp_path, "other") == [0, 1, 2]
    assert (contents.taken_back, contents.goes_back) == (4, 0)


def test_two_restarts(tmp_path: Path) -> None:
    write(tmp_path, losses(range(10), 0), "events.out.tfevents.1")
    write(tmp_path, losses(range(4, 8), 100), "events.out.tfevents.2")
    write(tmp_path, losses(range(6, 9), 200), "events.out.tfevents.3")
    assert steps(tmp_path) == list(range(9))
    assert [wall for _, wall, _ in points(tmp_path)["loss"]] == [0, 1, 2, 3, 100, 101, 200, 201, 202]


def test_files_written_at_the_same_time_discard_nothing(tmp_path: Path) -> None:
    write(tmp_path, losses(range(10), 0), FIRST)
    write(tmp_path, losses(range(10), 0.5), SECOND)
    contents = read(tmp_path)
    assert steps(tmp_path) == [*range(10), *range(10)]
    assert (contents.taken_back, contents.goes_back) == (0, 1)


def test_decreasing_steps_within_file_are_kept_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, [*losses(range(5)), *losses(range(5)), *losses(range(5))])
    assert points(path) == accumulated(path)
    assert read(path).goes_back == 2


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("loss", ["loss", "ray/tune/loss"]),
        ("ray/tune/*", ["ray/tune/loss", "ray/tune/info/a"]),
        ("*/loss", ["ray/tune/loss"]),
        ("tune/loss", ["ray/tune/loss"]),
        ("?oss", ["loss", "ray/tune/loss"]),
        ("LOSS", []),
    ],
)
def test_globs_match_tags_and_endings(pattern: str, matches: list[str]) -> None:
    tags = ["loss", "ray/tune/loss", "ray/tune/info/a", "closs"]
    assert [tag for tag in tags if is_wanted(tag, [pattern])] == matches


def test_glob_without_match() -> None:
    patterns = ["los", "reward"]
    with pytest.raises(UsageError, match="no tag matches los") as error:
        refuse_unmatched(patterns, ["train/loss", "reward"])
    assert error.value.hint == "did you mean loss?"
    with pytest.raises(UsageError) as error:
        refuse_unmatched(patterns, ["ray/tune/los", "info/episode_reward_max", "info/episode_reward_mean"])
    assert error.value.hint == "--tag '*reward*' matches episode_reward_max and 1 more"
    refuse_unmatched([], [])
    refuse_unmatched(["reward"], ["train/reward"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "trial", [scalar("loss", step, 1.0) for step in range(3)])


def follower(folder: Path) -> Follower:
    """A follower that continues where reading the run ended."""
    return Follower([folder], read(folder, Series).files)


def polled(follower: Follower) -> list[tuple[str, str, list[int]]]:
    return [
        (Path(run.name).name, tag, points["step"].tolist())
        for run, batch in follower.poll()
        for tag, points in batch.points.items()
    ]


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_poll_skips_points_that_were_read(path: Path) -> None:
    assert polled(follower(path.parent)) == []


def test_poll_returns_each_point_once(path: Path) -> None:
    following = follower(path.parent)
    for step in (3, 4):
        append(path, b"".join(frames([scalar("loss", step, 1.0), scalar("reward", step, 1.0)])))
        assert sorted(polled(following)) == [("trial", "loss", [step]), ("trial", "reward", [step])]
        assert polled(following) == []


def test_poll_returns_record_when_complete(path: Path) -> None:
    following = follower(path.parent)
    (record,) = frames([scalar("loss", 3, 1.0)])
    for byte in range(len(record) - 1):
        append(path, record[byte : byte + 1])
        assert polled(following) == []
    assert following.new_faults() == []
    append(path, record[-1:])
    assert polled(following) == [("trial", "loss", [3])]


def test_poll_continues_cut_file(path: Path) -> None:
    (record,) = frames([scalar("loss", 3, 1.0)])
    append(path, record[:10])
    following = follower(path.parent)
    append(path, record[10:])
    assert polled(following) == [("trial", "loss", [3])]


def test_poll_finds_new_files_and_runs(path: Path, tmp_path: Path) -> None:
    following = follower(tmp_path)
    write(path.parent, [scalar("loss", 9, 1.0)], "events.out.tfevents.2.host")
    write(tmp_path / "another", [scalar("loss", 0, 1.0)])
    assert polled(following) == [("another", "loss", [0]), ("trial", "loss", [9])]


def test_removed_and_replaced_files(path: Path) -> None:
    following = follower(path.parent)
    length = path.stat().st_size
    path.write_bytes(b"short")
    assert polled(following) == []
    assert following.new_faults() == [f"{path} has become shorter than the {length:,} bytes that were read"]
    assert following.new_faults() == []
    path.unlink()
    assert polled(following) == []


def test_damage_is_reported_once(path: Path) -> None:
    following = follower(path.parent)
    append(path, b"no frame at all")
    assert polled(following) == []
    assert len(following.new_faults()) == 1
    append(path, b"more")
    assert polled(following) == []
    assert following.new_faults() == []
