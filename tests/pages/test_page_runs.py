"""What running a page does with its blocks, on pages of shell commands that take no time.

How a page is read: its fences, and the comments about them.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rlexp.processes.family import has_ended
from tests.pages.blocks import Block, Directions, PageError, blocks_of
from tests.pages.page_run import PageResult, missing, run_page


def read(tmp_path: Path, text: str) -> list[Block]:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return blocks_of(page)


def test_block_has_language_text_and_line_of_its_text(tmp_path: Path) -> None:
    (block,) = read(tmp_path, "# Title\n\n```bash\nrlexp ls\n\nrlexp doctor\n```\nmore\n")
    assert (block.language, block.text, block.place) == ("bash", "rlexp ls\n\nrlexp doctor\n", "page.md:4")
    assert block.directions == Directions()


def test_comments_are_about_the_next_block_only(tmp_path: Path) -> None:
    first, second = read(tmp_path, "<!-- docs-test: exit=2 -->\n```bash\nfalse\n```\n```bash\ntrue\n```\n")
    assert (first.directions.exit_status, second.directions.exit_status) == (2, 0)


def test_several_comments_and_those_of_others(tmp_path: Path) -> None:
    text = (
        "<!-- docs-test: with -o stop.timesteps_total=2000 --seed 3 -->\n<!-- recipe: head -->\n"
        "<!-- docs-test: needs=optuna,openssl -->\n```bash\n```\n"
    )
    (block,) = read(tmp_path, text)
    assert block.directions.extra_words == ("-o", "stop.timesteps_total=2000", "--seed", "3")
    assert block.directions.needs == ("optuna", "openssl")


@pytest.mark.parametrize(
    ("words", "directions"),
    [
        ("file=envs/my_env.py", Directions(file="envs/my_env.py")),
        ("skip needs a cluster", Directions(skip="needs a cluster")),
        ("background", Directions(background=True)),
        ("background until is ready", Directions(background=True, until="is ready")),
    ],
)
def test_directions(tmp_path: Path, words: str, directions: Directions) -> None:
    (block,) = read(tmp_path, f"<!-- docs-test: {words} -->\n```bash\n```\n")
    assert block.directions == directions


@pytest.mark.parametrize(
    "words", ["exit=two", "exit=", "skip", "with", "timeout=3", "file=", "background later", "needs"]
)
def test_unknown_comments_are_errors(tmp_path: Path, words: str) -> None:
    with pytest.raises(PageError, match=r"page\.md:2: unknown docs-test comment"):
        read(tmp_path, f"\n<!-- docs-test: {words} -->\n```bash\n```\n")


def test_comment_without_a_fence_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page\.md:2: .* before a fence"):
        read(tmp_path, "<!-- docs-test: skip later -->\nSome words.\n```bash\n```\n")


def test_open_fence_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page\.md:1: the fence is never closed"):
        read(tmp_path, "```bash\nrlexp ls\n")


def test_fences_in_lists_and_inside_longer_fences(tmp_path: Path) -> None:
    listed, outer = read(
        tmp_path, "- a step:\n\n  ```python\n  if a:\n      b\n  ```\n\n````text\n```bash\nls\n```\n````\n"
    )
    assert listed.text == "if a:\n    b\n"
    assert (outer.language, outer.text) == ("text", "```bash\nls\n```\n")


END_TIMEOUT_S = 20.0


def run(tmp_path: Path, text: str, bound_s: float = 30.0) -> PageResult:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return run_page(page, bound_s)


def bash(text: str, comment: str = "") -> str:
    return f"<!-- docs-test: {comment} -->\n```bash\n{text}\n```\n" if comment else f"```bash\n{text}\n```\n"


def test_blocks_share_a_folder_with_the_experiments(tmp_path: Path) -> None:
    result = run(
        tmp_path, bash("test -f experiments/cartpole-dqn.yaml; echo 3 > kept") + bash('test "$(cat kept)" = 3')
    )
    assert (result.ran, result.failure) == (2, "")


def test_saved_files_are_not_run(tmp_path: Path) -> None:
    saved = "<!-- docs-test: file=my_env.py -->\n```python\nRIGHT = 1\nassert __name__ == 'my_env'\n```\n"
    result = run(tmp_path, saved + "```python\nimport my_env\nassert my_env.RIGHT == 1\n```\n")
    assert (result.saved, result.ran, result.failure) == (1, 1, "")


def test_failure_names_line_command_and_output(tmp_path: Path) -> None:
    result = run(tmp_path, "# Page\n\n" + bash("echo before\nls /there-is-none\necho after"))
    assert result.failure.startswith("page.md:5: exit status 2, not 0\n  ls /there-is-none\n")
    assert "before" in result.failure
    assert "after" not in result.failure


def test_expected_exit_status(tmp_path: Path) -> None:
    assert run(tmp_path, bash("true\nexit 2", "exit=2")).failure == ""
    assert "exit status 0, not 2" in run(tmp_path, bash("true", "exit=2")).failure


def test_expected_exit_status_of_an_earlier_command_fails(tmp_path: Path) -> None:
    result = run(tmp_path, bash("ls /there-is-none\nls \\\n  /nor-this", "exit=2"))
    assert "page.md:3: exit status 2 before the last command" in result.failure
    assert run(tmp_path, bash("true\nls \\\n  /there-is-none", "exit=2")).failure == ""


def test_words_are_added_to_commands_that_train(tmp_path: Path) -> None:
    real = os.path.join(os.path.dirname(sys.executable), "rlexp")
    shown = 'sed -n 3,4p "$(command -v rlexp)" | tr -s " "'
    result = run(tmp_path, bash(f"echo EXIT; {shown}; exit 1", "with -o 'config.lr=1e-3' --seed 3"))
    assert f'run|sweep|submit) exec {real} "$@" -o config.lr=1e-3 --seed 3 ;;' in result.failure
    assert f'*) exec {real} "$@" ;;' in result.failure


def test_skipped_blocks_have_a_reason(tmp_path: Path) -> None:
    result = run(tmp_path, bash("exit 1", "skip needs a cluster") + bash("exit 1", "needs=sys,no_such_package"))
    assert result.skipped == ["page.md:3: needs a cluster", "page.md:7: needs no_such_package"]
    assert (result.ran, result.failure) == (0, "")


def test_needs_are_packages_or_programs() -> None:
    assert missing(("json", "bash", "no_such_thing", "no_such.thing")) == ["no_such_thing", "no_such.thing"]


def shown(text: str) -> str:
    return f"<!-- docs-test: prints -->\n```text\n{text}\n```\n"


def test_what_a_page_shows_must_have_been_printed(tmp_path: Path) -> None:
    said = bash("echo 'error: a.yaml:3:5  lr must be a number > 0,'; echo 'got the  string'")
    assert run(tmp_path, said + shown("error: … lr must be a number > 0, got the string")).failure == ""
    assert "was not printed: got 3" in run(tmp_path, said + shown("error:\ngot 3")).failure
    assert "was not printed: error" in run(tmp_path, said + shown("lr must\nerror")).failure


@pytest.mark.parametrize(("language", "text"), [("yaml", "a: [1"), ("json", "{"), ("toml", "a ="), ("shell", "ls")])
def test_blocks_that_cannot_be_read_fail(tmp_path: Path, language: str, text: str) -> None:
    assert run(tmp_path, f"```{language}\n{text}\n```\n").failure.startswith("page.md:2: ")


def test_a_block_that_hangs_is_ended(tmp_path: Path) -> None:
    result = run(tmp_path, bash("echo begun\nsleep 600"), bound_s=0.5)
    assert "exit status 124" in result.failure
    assert "begun" in result.failure


def test_background_blocks_run_until_the_end_of_the_page(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    server = f"trap 'echo > {ended}; exit 0' TERM\necho $$ > pid; echo ready\nwhile true; do sleep 0.05; done"
    check = f"test ! -e {ended}\nkill -0 $(cat pid)"
    result = run(tmp_path, bash(server, "background until ready") + bash(check))
    assert (result.ran, result.failure, ended.exists()) == (2, "", True)


def test_what_a_block_leaves_running_is_ended_with_the_page(tmp_path: Path) -> None:
    number = tmp_path / "pid"
    result = run(tmp_path, bash(f"sleep 600 &\necho $! > {number}") + bash(f"kill -0 $(cat {number})"))
    assert (result.ran, result.failure) == (2, "")
    deadline = time.monotonic() + END_TIMEOUT_S
    with suppress(psutil.NoSuchProcess):
        left = psutil.Process(int(number.read_text()))
        while not has_ended(left):  # it was killed, which may take a moment
            assert time.monotonic() < deadline


def test_a_background_block_that_never_says_that_it_is_ready_fails(tmp_path: Path) -> None:
    result = run(tmp_path, bash("echo no server here", "background until ready"))
    assert "never printed 'ready'" in result.failure
    assert "no server here" in result.failure


def test_environment_is_not_the_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_OUT", "/elsewhere")
    result = run(
        tmp_path,
        bash(
            'test -z "$RLEXP_OUT"; test "$HOME" != ~root; test "$(command -v python)" = '
            + os.path.join(os.path.dirname(sys.executable), "python")
        ),
    )
    assert result.failure == ""
