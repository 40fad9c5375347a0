"""What answers mean."""

import pytest

from server.webhook.verdicts import DONE, Outcome, Reply, retry_after_ms, verdict_of

NOW_MS = 1_795_248_000_000
"""2026-11-21T08:00:00Z."""


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_2xx_is_done(status: int) -> None:
    assert verdict_of(Reply(status, "10"), NOW_MS) == DONE


@pytest.mark.parametrize("status", [100, 301, 302, 307, 400, 404, 418, 500, 599, 999])
def test_anything_else_goes_again_with_back_off(status: int) -> None:
    verdict = verdict_of(Reply(status, "10"), NOW_MS)
    assert (verdict.outcome, verdict.delay_ms) == (Outcome.AGAIN, None)
    assert verdict.reason.startswith(f"HTTP {status}")


def test_no_answer_goes_again_and_says_why() -> None:
    assert verdict_of(Reply(0, fault="timed out after 15 s"), NOW_MS) == (
        Outcome.AGAIN,
        None,
        "timed out after 15 s",
    )


def test_a_410_pauses() -> None:
    assert verdict_of(Reply(410, "10"), NOW_MS) == (Outcome.GONE, None, "HTTP 410 Gone")


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(status: int) -> None:
    assert verdict_of(Reply(status, "120"), NOW_MS).delay_ms == 120_000
    assert verdict_of(Reply(status, "Sat, 21 Nov 2026 08:02:00 GMT"), NOW_MS).delay_ms == 120_000
    assert verdict_of(Reply(status), NOW_MS).delay_ms is None


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("0", 1_000),
        ("1", 1_000),
        (" 30 ", 30_000),
        ("999999999", 86_400_000),
        ("1796127600", None),
        ("999999999999999", 86_400_000),
        ("Sat, 21 Nov 2026 07:00:00 GMT", 1_000),
        ("Sat, 21 Nov 2036 08:00:00 GMT", 86_400_000),
        ("Sat, 21 Nov 2026 08:00:30 -0000", 30_000),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("9" * 40, None),
        ("Sat, 99 Nov 2026 08:00:00 GMT", None),
        ("Sat, 21 Nov 99999999999 08:00:00 GMT", None),
    ],
)
def test_retry_after_within_bounds(text: str, delay_ms: int | None) -> None:
    assert retry_after_ms(text, NOW_MS) == delay_ms
