"""What tests share: one Ray per session."""

from collections.abc import Iterator

import pytest

from rlexp.sessions.own import OwnRay
from rlexp.sessions.ray_environment import set_ray_environment

# Before any test module imports ray, which reads its environment then.
set_ray_environment(debug=False)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray with four logical CPUs, started at the first test that needs one."""
    with OwnRay(num_cpus=4, num_gpus=0, debug=False):
        yield
