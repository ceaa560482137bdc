"""What tests of keys share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads() -> Iterator[None]:
    """Give torch its threads back after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
