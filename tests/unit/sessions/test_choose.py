"""Which Ray a command trains in: the option wins over our variable, ours over Ray's, and ``local`` asks for our own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from rlexp.cluster.session import OWN, Joining, choose
from rlexp.errors import UsageError

HEAD = "10.77.0.1:6379"
OTHER = "10.77.0.2:6379"


@pytest.mark.parametrize(
    ("option", "environment", "address"),
    [
        (None, {}, None),
        (None, {"RAY_ADDRESS": ""}, None),
        (None, {"RAY_ADDRESS": HEAD}, HEAD),
        (None, {"RAY_ADDRESS": "local"}, None),
        (None, {"RAY_ADDRESS": "auto"}, "auto"),
        (None, {"RLEXP_ADDRESS": OTHER, "RAY_ADDRESS": HEAD}, OTHER),
        (None, {"RLEXP_ADDRESS": "local", "RAY_ADDRESS": HEAD}, None),
        (HEAD, {"RLEXP_ADDRESS": OTHER, "RAY_ADDRESS": OTHER}, HEAD),
        ("local", {"RLEXP_ADDRESS": OTHER, "RAY_ADDRESS": HEAD}, None),
        ("auto", {"RAY_ADDRESS": HEAD}, HEAD),
        ("auto", {}, "auto"),
        ("[::1]:6379", {}, "[::1]:6379"),
        (None, {"RAY_ADDRESS": HEAD, "RLEXP_SESSION": "/tmp/rlexp-1"}, None),  # started by an env of a run
        (None, {"RLEXP_ADDRESS": HEAD, "RLEXP_SESSION": "/tmp/rlexp-1"}, HEAD),
        (HEAD, {"RLEXP_SESSION": "/tmp/rlexp-1"}, HEAD),
    ],
)
def test_address_that_wins(option: str | None, environment: dict[str, str], address: str | None) -> None:
    assert choose(option, environment) == Joining(address)
    assert "RAY_ADDRESS" not in environment


@pytest.mark.parametrize(
    ("option", "environment", "named"),
    [
        ("ray://head:10001", {}, "--address ray://head:10001"),
        ("auto", {"RAY_ADDRESS": "http://head:8265"}, "RAY_ADDRESS=http://head:8265"),
        (None, {"RLEXP_ADDRESS": "ray://head"}, "RLEXP_ADDRESS=ray://head"),
        (None, {"RAY_ADDRESS": "ray://me:hunter2@head:10001"}, "RAY_ADDRESS=ray://me:***@head:10001"),
    ],
)
def test_address_of_a_client_names_the_command_that_submits_the_job(
    option: str | None, environment: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(option, environment)
    assert caught.value.message.startswith(f"{named} is not the address of a cluster's head")
    assert "hunter2" not in str(caught.value.hint)
    assert str(caught.value.hint).endswith(":8265 -- rlexp run FILE --address auto")
    (extra,) = re.findall(r"rlexp\[(\w+)\]", str(caught.value.hint))
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(package.startswith("ray[default]") for package in project["optional-dependencies"][extra])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("address", ["head", "head:port", "a b:6379", ":6379"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        choose(address, {})


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("90", 90)])
def test_durations(text: str, seconds: float) -> None:
    assert choose(HEAD, {}, text).wait_s == seconds


def test_options_of_clusters_need_one() -> None:
    for wait, sends_folder, name in (("10m", False, "--wait"), (None, True, "--working-dir")):
        with pytest.raises(UsageError, match=f"^{name} is for clusters"):
            choose(None, {}, wait, sends_folder)
    with pytest.raises(UsageError, match="is no duration"):
        choose(HEAD, {}, "soon")
    for text in ("9" * 400 + "h", "1" * 20):
        with pytest.raises(UsageError, match="is more than 10 years"):
            choose(HEAD, {}, text)
    assert choose(None, {}) == OWN
