"""Tiny bounds for the constants that no configuration sets."""

import pytest

import server.delivery.replay
import server.engine.writer
import timeline.structures


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.delivery.replay, "TURN_ROWS", 3)
    monkeypatch.setattr(server.engine.writer, "GROUP_MESSAGES", 4)
    monkeypatch.setattr(timeline.structures, "LEARN_TOPICS", 3)
    monkeypatch.setattr(timeline.structures, "FANOUT", 2)
