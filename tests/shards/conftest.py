import pytest

from shards.recover import Opened
from tests.support.memory_store import MemoryStore

from .timelines import open_at


@pytest.fixture
def opened() -> Opened:
    """A new timeline."""
    return open_at(MemoryStore())
