"""What users write, right and wrong, for the type checker: it runs on this file, and nobody else does.

`make types` fails if a right call is refused; and, because of what an ignored error has to be, if a wrong one
is not.
"""

from typing import Unpack

import fasti
from fasti.options import MessageOptions


async def right(c: fasti.Client, s: fasti.sync.Client, **options: Unpack[MessageOptions]) -> None:
    await c.messages.schedule("a", "x", delay=5, headers={"b": "c"}, late=None)
    s.messages.schedule("a", **options)
    c.subscribe("a", session="s", qos=2)
    s.schedules.put("n", topic="a", every=5, gap="skip", qos=1)


async def wrong(c: fasti.Client, s: fasti.sync.Client) -> None:
    await c.messages.schedule("a", dely=5)  # type: ignore[call-arg]
    s.messages.schedule("a", dely=5)  # type: ignore[call-arg]
    await c.schedules.put("n", topic="a", gap="never")  # type: ignore[arg-type]
    s.schedules.preview(misfire="skip")  # type: ignore[call-arg]
    c.subscribe("a", sesion="s")  # type: ignore[call-arg]
    s.messages.cancel_where(state="all")  # type: ignore[call-arg]
    await c.messages.schedule("a", late="maybe")  # type: ignore[arg-type]
    s.messages.list(state="gone")  # type: ignore[arg-type]
    c.subscribe("a", qos=3)  # type: ignore[arg-type]
