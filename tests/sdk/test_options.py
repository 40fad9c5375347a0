"""The options are named once: what reads them knows them all, and whoever spells one wrong is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import fasti
from fasti import options, schedules, wire
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
    "dely": lambda c: c.messages.schedule("a", dely=5),
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


USERS_CODE = """
from typing import Unpack
import fasti
from fasti.options import MessageOptions

async def right(c: fasti.Client, s: fasti.sync.Client, **options: Unpack[MessageOptions]) -> None:
    await c.messages.schedule("a", "x", delay=5, headers={"b": "c"}, late=None)
    s.messages.schedule("a", **options)
    c.subscribe("a", session="s", qos=2)
    s.schedules.put("n", topic="a", every=5, gap="skip", qos=1)

async def wrong(c: fasti.Client, s: fasti.sync.Client) -> None:
    await c.messages.schedule("a", dely=5)
    s.messages.schedule("a", dely=5)
    await c.schedules.put("n", topic="a", gap="never")
    s.schedules.preview(misfire="skip")
    c.subscribe("a", sesion="s")
    s.messages.cancel_where(state="all")
    await c.messages.schedule("a", late="maybe")
    s.messages.list(state="gone")
    c.subscribe("a", qos=3)
"""


def test_a_type_checker_knows_each_option(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USERS_CODE)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", "--hide-error-context"]
    done = subprocess.run(
        [*command, str(tmp_path / "user.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "error: " in line]
    assert len(said) == 9, done.stdout + done.stderr
    names = ("dely", "dely", "gap", "misfire", "sesion", "state", "late", "state", "qos")
    for line, name in zip(said, names, strict=True):
        assert f'"{name}"' in line
