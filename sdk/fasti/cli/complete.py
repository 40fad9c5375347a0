"""Names from the server for the shell's completion, beside commands and options.

The user waits with a finger on the tab key: one attempt, at most a second, and silence if there is no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from itertools import islice
from typing import Any

import typer

import fasti

from .profiles import Profile, ProfileError, chosen

WAIT_S = 1.0
NAMES_MAX = 100


def schedule_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of schedules with this prefix."""
    return _names(context, incomplete, lambda client: client.schedules.list(), "name")


def session_names(context: typer.Context, incomplete: str) -> list[str]:
    """Client ids of sessions that begin so."""
    return _names(context, incomplete, lambda client: client.sessions.list(), "client_id")


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of groups with this prefix."""
    return _names(context, incomplete, lambda client: client.groups.list(), "name")


def endpoint_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of endpoints with this prefix."""
    return _names(context, incomplete, lambda client: client.endpoints.list(), "name")


def slice_starts(context: typer.Context, incomplete: str) -> list[str]:
    """First instants of slices that begin so."""
    return _names(context, incomplete, lambda client: client.slices.list(), "start")


def job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs that begin so."""
    return _names(context, incomplete, lambda client: client.jobs.list(), "id")


def _names(
    context: typer.Context,
    incomplete: str,
    ask: Callable[[fasti.Client], AsyncIterator[Any]],
    field: str,
) -> list[str]:
    try:
        found = asyncio.run(_asked(_profile(context), ask))
    except (fasti.Error, ProfileError, TimeoutError, OSError, ValueError):
        return []
    names = (str(item.raw.get(field, "")) for item in found)
    return list(islice((name for name in names if name.startswith(incomplete)), NAMES_MAX))


async def _asked(profile: Profile, ask: Callable[[fasti.Client], AsyncIterator[Any]]) -> list[Any]:
    """What arrived within the time."""
    found: list[Any] = []
    retry = fasti.Retry(attempts=1)
    try:
        async with asyncio.timeout(WAIT_S), profile.client(retry, _ignored) as client:
            async for item in ask(client):
                found.append(item)  # noqa: PERF401 - what came before the time was over counts
    except TimeoutError:
        pass
    return found


def _ignored(_: str) -> None:
    """No room for it between two presses of the tab key."""


def _profile(context: typer.Context) -> Profile:
    """Which server: the options of the line so far, the environment, the profile."""
    given = context.find_root().params
    named = Profile(**{f.name: given.get(f.name) for f in fields(Profile)})
    wanted = given.get("profile")
    return (named if wanted else named.over(Profile.of_environment())).over(chosen(wanted))
