from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """These networks are far too small to be shared between cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def warnings_each_time() -> Iterator[None]:
    """Torch tells some warnings once in a process only, so that an earlier test could hide them."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)
