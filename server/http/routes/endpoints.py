"""`/v1/endpoints`: where messages are posted, made, looked at, changed, paused, tried.

    PUT      201 new, 200 changed           absent members are as the settings say; `secret` stays as it was
    DELETE   204; what waits for it goes nowhere
    :pause :resume :replay    200, as it stands then
    :test    200 {"ok", "status", "latency_ms", "reason"}: one post at once, beside the queue

An endpoint's URL and headers may hold what opens somebody's door, so all of this needs the scope admin. Values
of headers are never shown, secrets neither: of these there is a fingerprint.
"""

import re
import secrets
from collections.abc import Callable

import msgspec
from aiohttp import web

from shards.commit import Commit
from timeline.position import Position

from ...clock import Clock
from ...config import Config
from ...delivery.broker import Broker
from ...delivery.router import Router
from ...times import format_ms
from ...webhook.registry import signing
from ...webhook.webhooks import Standing, TooMany, Unknown, Webhooks
from ...writer import Ask
from ..answers import asked, json_answer, refusals
from ..calls import ADMIN, WRITES, Gives, described
from ..problems import Problem
from ..requests import body_of, limit_of
from ..timeline import Timeline
from ..turns import Turns
from ..values import shapes
from ..values.bodies import FieldError
from ..values.endpoint_body import EndpointRequest, wanted_of
from ..values.endpoint_views import endpoint_view
from ..values.scalars import PAGED, Location
from .sessions import LIST_LOOK_ROWS, LOOK_ROWS, Rewind, lag_of, position_of

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
ONE = "/v1/endpoints/{name:[^/]+(?<!:pause)(?<!:resume)(?<!:test)(?<!:replay)}"
"""The path of one; with a verb behind it the others answer, to every method."""
TEST_BYTES = 12
"""Of chance, in the id of a test."""

_ENDPOINT = msgspec.json.Decoder(EndpointRequest)
_REWIND = msgspec.json.Decoder(Rewind)
