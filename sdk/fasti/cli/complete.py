"""Names from the server for the shell's completion, beside commands and options.

The user waits with a finger on the tab key: one attempt, at most a second, and silence if there is no answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from itertools import islice
from typing import Any

import typer

import fasti

from .profiles import Profile, ProfileError, settled

WAIT_S = 1.0
NAMES_MAX = 100


Names = Callable[[typer.Context, str], list[str]]


def _names_of(ask: Callable[[fasti.Client], AsyncIterator[Any]], field: str = "name") -> Names:
    """Completes a name: those that the server lists under `field` and that begin so."""

    def names(context: typer.Context, incomplete: str) -> list[str]:
        import asyncio  # only when the tab key was pressed

        try:
            found = asyncio.run(_listed(_profile(context), ask))
        except (fasti.Error, ProfileError, TimeoutError, OSError, ValueError):
            return []
        every = (str(item.raw.get(field, "")) for item in found)
        return list(islice((name for name in every if name.startswith(incomplete)), NAMES_MAX))

    return names


async def _listed(profile: Profile, ask: Callable[[fasti.Client], AsyncIterator[Any]]) -> list[Any]:
    """What arrived within the time."""
    import asyncio

    found: list[Any] = []
    retry = fasti.Retry(attempts=1)
    try:
        async with asyncio.timeout(WAIT_S), profile.client(retry, lambda _: None) as client:
            async for item in ask(client):
                found.append(item)  # noqa: PERF401 - what came before the time was over counts
    except TimeoutError:
        pass
    return found


def _profile(context: typer.Context) -> Profile:
    """Which server: the options of the line so far, the environment, the profile."""
    given = context.find_root().params
    named = Profile(**{f.name: given.get(f.name) for f in fields(Profile)})
    return settled(named, given.get("profile"))


schedule_names = _names_of(lambda client: client.schedules.list())
group_names = _names_of(lambda client: client.groups.list())
endpoint_names = _names_of(lambda client: client.endpoints.list())
session_names = _names_of(lambda client: client.sessions.list(), "client_id")
slice_starts = _names_of(lambda client: client.slices.list(), "start")
job_ids = _names_of(lambda client: client.jobs.list(), "id")
