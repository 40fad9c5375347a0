"""W3C Trace Context: what is one, what of it is kept."""

import pytest

from server.observe.trace_context import NO_TRACE, context_in, context_of, is_sampled, joined
from tests.support.tracing import CALLER, SAMPLED, TRACE, UNSAMPLED

KEPT = (("traceparent", SAMPLED),)


def test_a_context_is_kept_as_the_headers_it_came_in() -> None:
    assert context_of(SAMPLED) == KEPT
    assert context_of(SAMPLED, "a=1, b@c=2") == (*KEPT, ("tracestate", "a=1, b@c=2"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", SAMPLED[:-1], SAMPLED + "0", SAMPLED + "-", SAMPLED + "-more", SAMPLED.upper()),
        *(SAMPLED + "\n", " " + SAMPLED, f"ff-{TRACE}-{CALLER}-01", f"0-{TRACE}-{CALLER}-01"),
        *(f"00-{'0' * 32}-{CALLER}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[1:]}-{CALLER}-01"),
        *(f"00-{TRACE}-{CALLER[1:]}-01", f"00-{TRACE}-{CALLER}-0g", f"00_{TRACE}_{CALLER}_01", "x" * 100_000),
    ],
)
def test_what_is_no_traceparent_is_no_context(text: str) -> None:
    assert context_of(text, "a=1") == NO_TRACE


@pytest.mark.parametrize("more", ["", "-", "-what-will-be"])
def test_of_a_later_version_what_version_00_has_is_kept(more: str) -> None:
    assert context_of(f"cc-{TRACE}-{CALLER}-01{more}") == KEPT


@pytest.mark.parametrize(
    "state",
    [
        *("a", "=1", "A=1", "a=1,b", "a=é", "a=1\n", "a=" + "x" * 511),
        *(",".join(f"a{n}=1" for n in range(33)), "a=1=2", "a=1,a=2", "0=1", "@a=1", "a@b@c=1"),
        *("a@" + "b" * 15 + "=1", "a= "),
    ],
)
def test_a_tracestate_that_is_not_sound_is_left_out(state: str) -> None:
    assert context_of(SAMPLED, state) == KEPT


def test_the_flag_says_whether_it_is_recorded() -> None:
    assert is_sampled(context_of(SAMPLED))
    assert is_sampled(context_of(SAMPLED[:-2] + "03"))
    assert not is_sampled(context_of(UNSAMPLED))
    assert not is_sampled(context_of(SAMPLED[:-2] + "02"))
    assert not is_sampled(NO_TRACE)


def test_among_headers_the_last_of_a_name_counts() -> None:
    assert context_in((("a", "b"), ("traceparent", "no"), ("traceparent", SAMPLED))) == KEPT
    assert context_in((("traceparent", SAMPLED), ("traceparent", "no"))) == NO_TRACE
    assert context_in((("tracestate", "a=1"), ("Traceparent", SAMPLED))) == NO_TRACE


def test_what_a_message_says_itself_stays_and_there_is_a_bound() -> None:
    own = (("traceparent", "mine"),)
    context = context_of(SAMPLED, "a=1")
    assert joined(own, context, 64) == own
    assert joined((("tracestate", "b=2"),), context, 64) == (("tracestate", "b=2"), *KEPT)
    full = tuple((f"h{n}", "") for n in range(63))
    assert joined(full, KEPT, 64) == (*full, *KEPT)
    assert joined(full, context, 64) == full


def test_a_span_made_for_a_message_takes_the_place_of_what_it_says() -> None:
    said = (("traceparent", SAMPLED), ("x", "y"), ("tracestate", "a=1"))
    child = context_of(SAMPLED.replace(CALLER, "1" * 16))
    assert joined(said, child, 64, is_child=True) == (("x", "y"), *child)
    assert joined((("x", "y"),), child, 64, is_child=True) == (("x", "y"), *child)
    full = tuple((f"h{n}", "") for n in range(64))
    assert joined(full, child, 64, is_child=True) == full
