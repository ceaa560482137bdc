"""A cluster that the environment names is refused, not ignored; what asks for a Ray of one's own is no cluster."""

from __future__ import annotations

import pytest

from rlexp.errors import ResourceError
from rlexp.sessions.ray_environment import refuse_cluster

ADDRESS = "10.77.0.1:6379"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"RAY_ADDRESS": ADDRESS}, f"RAY_ADDRESS={ADDRESS}"),
        ({"RAY_ADDRESS": "auto"}, "RAY_ADDRESS=auto"),
        ({"RAY_ADDRESS": "ray://me:hunter2@head:10001"}, r"RAY_ADDRESS=ray://me:\*\*\*@head:10001"),
        ({"RLEXP_ADDRESS": ADDRESS}, f"RLEXP_ADDRESS={ADDRESS}"),
        ({"RLEXP_ADDRESS": "auto", "RAY_ADDRESS": "local"}, "RLEXP_ADDRESS=auto"),
        ({"RLEXP_ADDRESS": ADDRESS, "RLEXP_SESSION": "/tmp/rlexp-1"}, f"RLEXP_ADDRESS={ADDRESS}"),
    ],
)
def test_cluster_in_the_environment_is_refused(environment: dict[str, str], named: str) -> None:
    before = dict(environment)
    with pytest.raises(ResourceError, match=f"^{named} names a Ray cluster") as caught:
        refuse_cluster(environment)
    assert caught.value.exit_code == 4
    assert "RLEXP_ADDRESS=local" in str(caught.value.hint)
    assert environment == before


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RAY_ADDRESS": ""},
        {"RAY_ADDRESS": "local"},
        {"RAY_ADDRESS": ADDRESS, "RLEXP_ADDRESS": "local"},
        {"RAY_ADDRESS": ADDRESS, "RLEXP_SESSION": "/tmp/rlexp-1"},  # a command that an env of a run has started
    ],
)
def test_local_address_removes_the_address_of_ray(environment: dict[str, str]) -> None:
    refuse_cluster(environment)
    assert "RAY_ADDRESS" not in environment
