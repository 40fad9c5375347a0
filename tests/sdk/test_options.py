"""The options are named once: what reads them knows them all, and whoever spells one wrong is told."""

import asyncio
import inspect
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

import fasti
from fasti import endpoints, entries, groups, messages, options, schedules, signatures, wire
from fasti.subscribe import SubscribeRequest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kind", "reader", "arguments"),
    [
        (options.MessageOptions, fasti.NewMessage, {"topic", "payload"}),
        (options.SubscribeOptions, SubscribeRequest, {"topic_filter"}),
    ],
)
def test_what_holds_the_options_has_them_all(kind: type, reader: type, arguments: set[str]) -> None:
    hints = get_type_hints(reader)
    held = {f.name: hints[f.name] for f in fields(reader) if f.name not in arguments}
    assert get_type_hints(kind) == held


def test_each_option_of_a_schedule_is_said() -> None:
    said = {*schedules._TIMING, "gap", "overlap", *wire.SENDING}
    assert said == {*get_type_hints(options.ScheduleOptions), "spread"}
    assert {*get_type_hints(options.Sending), "spread"} == set(wire.SENDING)


WRONG: dict[str, Callable[[Any], Any]] = {
    "dely": lambda c: c.messages.schedule("a", "", dely=5),
    "dalay": lambda c: c.messages.reschedule("0" * 32, dalay=5),
    "topics": lambda c: c.messages.count(topics="a"),
    "limits": lambda c: c.messages.count(limits=1),
    "state": lambda c: c.messages.cancel_where(topic="a", state="all"),
    "dry": lambda c: c.messages.shift(5, topic="a", dry=True),
    "spread": lambda c: c.schedules.put("n", topic="a", every=5, spread=5),
    "misfire": lambda c: c.schedules.preview(every=5, misfire="skip"),
    "expiry_s": lambda c: c.subscribe("a", session="s", expiry_s=5),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_name_is_refused_before_anything_is_sent(name: str) -> None:
    async with fasti.Client("http://127.0.0.1:9") as c:
        with pytest.raises(TypeError, match=f"'{name}'"):
            await WRONG[name](c)

    def blocking() -> None:
        with fasti.sync.Client("http://127.0.0.1:9") as c, pytest.raises(TypeError, match=f"'{name}'"):
            WRONG[name](c)

    await asyncio.to_thread(blocking)


KINDS = {name: kind for name, kind in vars(options).items() if hasattr(kind, "__optional_keys__")}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_option_is_explained(kind: Any) -> None:
    explained = signatures.meanings(kind)
    assert [text.partition("`: ")[0] for text in explained] == [f"`{name}" for name in kind.__annotations__]
    assert all(len(text.partition("`: ")[2]) > 10 for text in explained)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((messages.Messages.schedule, options.MessageOptions), (fasti.Message.reschedule, options.Due)),
        *((messages.Messages.count, options.Listed), (schedules.Schedules.put, options.ScheduleOptions)),
        *((fasti.Client.subscribe, options.SubscribeOptions), (groups.Groups.put, options.GroupOptions)),
        *((endpoints.Endpoints.put, options.EndpointOptions), (entries.Retries.list, options.RetrySelection)),
        (entries.Dead.drop, options.DeadSelection),
    ],
)
def test_help_shows_each_option_with_its_meaning(method: Callable[..., Any], kind: Any) -> None:
    twin = getattr(getattr(fasti.sync, method.__qualname__.split(".")[0]), method.__name__)
    for shown in (method, twin):
        parameters = inspect.signature(shown).parameters
        assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for name, hint in get_type_hints(kind).items():
            found = parameters[name]
            assert eval(found.annotation, vars(options)) == hint
            assert found.kind is found.KEYWORD_ONLY
        assert all(text in (inspect.getdoc(shown) or "") for text in signatures.meanings(kind))


def test_the_defaults_shown_are_those_of_a_subscription() -> None:
    shown = inspect.signature(fasti.Client.subscribe).parameters
    assert all(shown[f.name].default == f.default for f in fields(SubscribeRequest)[1:])


OTHERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "countdown": (lambda c: c.messages.schedule("a", 1, countdown=5), "fasti calls it delay"),
    "eta": (lambda c: c.messages.schedule("a", 1, eta="2030-01-01T00:00Z"), "fasti calls it at"),
    "deliver_in": (lambda c: c.messages.reschedule("0" * 32, deliver_in=5), "fasti calls it delay"),
    "max_retries": (lambda c: c.messages.schedule("a", 1, max_retries=5), "max_attempts and backoff of"),
    "retries": (lambda c: c.groups.put("g", "a/#", retries=5), "fasti calls it max_attempts"),
    "attempts": (lambda c: c.endpoints.put("e", "http://a", retry={"attempts": 5}), "calls it max_attempts"),
    "tries": (
        lambda c: fasti.Worker().on("a", retry=cast("Any", {"tries": 5})),
        "fasti calls it max_attempts",
    ),
    "retry_delay": (lambda _: fasti.Worker().on("a", retry_delay=5), "retry of Worker.on"),  # type: ignore[call-arg]
    "body": (lambda c: c.messages.schedule("a", "", body="x"), "fasti calls it payload"),
    "tz": (lambda c: c.schedules.put("n", topic="a", cron="@daily", tz="UTC"), "fasti calls it timezone"),
    "consumer_group": (lambda c: c.subscribe("a", consumer_group="g"), "fasti calls it group"),
    "sesion": (lambda c: c.subscribe("a", sesion="g"), "is session meant?"),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_a_name_of_others_is_answered_with_ours(name: str) -> None:
    call, said = OTHERS[name]
    async with fasti.Client("http://127.0.0.1:9") as c:
        with pytest.raises(TypeError, match=said):
            await call(c)


def test_a_type_checker_knows_each_option() -> None:
    """`make types` reads typed.py, where each wrong call is an error that has to be there."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert checked["strict"]
    assert "warn_unused_ignores" not in checked
    assert "tests.sdk.typed" in checked["modules"]
