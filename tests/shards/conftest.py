import pytest

from shards.memory import MemoryStore
from shards.recover import Opened

from .timelines import open_at


@pytest.fixture
def opened() -> Opened:
    """A new timeline."""
    return open_at(MemoryStore())
