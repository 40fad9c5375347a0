"""Tiny bounds for the constants that no configuration sets."""

from collections.abc import Iterator

import pytest

import server.replay
import server.writer
import timeline.structures


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server.replay, "TURN_ROWS", 3)
    monkeypatch.setattr(server.writer, "GROUP_MESSAGES", 4)
    monkeypatch.setattr(timeline.structures, "LEARN_TOPICS", 3)
    monkeypatch.setattr(timeline.structures, "FANOUT", 2)
    yield
