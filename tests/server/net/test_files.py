"""The bound on open files follows limits.connections as far as the system lets it."""

import resource

import pytest

from server.net.files import OTHERS, allow_open_files

Limits = tuple[int, int]


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "now", "is_short"),
    [
        (1_024, 1 << 20, 10_000, 10_000 + OTHERS, False),
        (1_024, 4_096, 10_000, 4_096, True),
        (1_024, 1_024, 10_000, 1_024, True),
        (20_000, 20_000, 10_000, 20_000, False),
        (1_024, resource.RLIM_INFINITY, 10_000, 10_000 + OTHERS, False),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10_000, resource.RLIM_INFINITY, False),
    ],
)
def test_the_soft_limit_is_raised(
    soft: int,
    hard: int,
    connections: int,
    now: int,
    is_short: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = (soft, hard)

    def change(_: int, wanted: Limits) -> None:
        nonlocal limits
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", change)
    assert allow_open_files(connections) == now
    assert limits == (now, hard)
    assert ("too few" in caplog.text) == is_short
