"""One torch thread for tests that compare losses: sums in one order, no waiting for each other on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """In each test with the marker `torch` of the module that imports this."""
    if request.node.get_closest_marker("torch") is None:
        yield
        return
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
