"""Checks for schemathesis: an answer's problem is one that the description names, and what the description
allows is refused only for what it cannot say. Two more hold where schemathesis's own cannot: a bad item of a
batch, and a path that may be of two kinds.

schemathesis also draws from schemas without the rules below `then`, which hold for several members at once.
To it what breaks such a rule is allowed, so its own check takes every 422. The check here looks at the whole
schema: a body that keeps to it is refused for one of REFUSALS, or there is a fault.
"""

import gc
import re
from typing import Any

import jsonschema_rs
import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response

gc.set_threshold(50_000, 20, 20)  # as in tests/conftest.py: schemathesis keeps many small objects

LONG_WAIT = "20s"
"""The example of :lease."""
REFUSALS = re.compile(
    "|".join(
        (
            # The clock, and how far ahead limits.max_delay lets a time be.
            r".*limits\.max_delay",
            r".*a time must be after 1970", r".*\bin Unix (s|ms|µs)\b", r".* is more than 31 years",
            r"by: is after the year 9999",
            r"(deliver_at|start|end|due_from|due_to|from|to): no such time",
            r"(end|rrule): leaves no fire",
            r"to: must be later than from",
            # The length of a duration, in whichever unit.
            r"\S+: must be (at most|from|above|longer than|at least) .*\b(s|seconds|never)\b",
            r"\S*backoff: must have no step above",
            r"bucket: must be long enough",
            # A rate above 0 that is hardly one.
            r"(per_key\.)?rate: must be a number, 0 or from",
            # Bytes where a schema counts characters.
            r"ordering_key: must have 1 to 128 bytes of UTF-8",
            # Text with a grammar of its own.
            r"(key|ordering_key|content_type): must not hold control characters",
            r"topic: a topic must not contain the non-character", r"filter: a filter must not contain the ",
            r"cron: '", r"rrule: ", r"\S+: unknown time zone", r"timezone: is required",
            r"cursor: (was not issued|is not one that)", r"lease_ids: .* is (not a lease_id|of the group)",
            r"payload: is not base64", r"secret: ", r"url: ", r"slice: not an RFC 3339 time", r"headers: ",
            # A whole number with a fraction of 0.
            r"\S+: Expected `int( \| null)?`, got `float`",
            # What is there, and what the settings allow.
            r"deliver_to: ",
            r"to: names (no|several)", r"dir: ", r"archive: (must|has) ",
            # Two places in one request, or the type of another member.
            r"(line \d+: )?key: (differs from the header|is required with|the Idempotency-Key was used)",
            r"key: (the key was used with|the key's pending message)",
            r"encoding: .* goes with a payload that is a string",
            r"then: goes with",
            r"debounce\.(wait|max_wait): must be ", r"debounce: does not go with",
        )
    )
)  # fmt: skip


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Nobody waits for messages that do not come: a call that may is made with a wait that is soon over."""
    if isinstance(case.body, dict) and case.body.get("wait") == LONG_WAIT:
        case.body = {**case.body, "wait": "10ms"}


@schemathesis.check
def problem_is_named(ctx: CheckContext, response: Response, case: Case) -> None:
    answers: dict[str, Any] = case.operation.definition.raw["responses"]
    named = answers.get(str(response.status_code), {}).get("x-problems")
    if named is not None:
        kind = response.json()["type"]
        assert kind in named, f"{kind} is not among {named}"


@schemathesis.check
def refusal_is_known(ctx: CheckContext, response: Response, case: Case) -> None:
    """What is allowed is refused only for what no schema can say."""
    if response.status_code != 422 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    raw = case.operation.definition.raw
    content = raw.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None and not _validator(case, case.operation.label).is_valid(case.body):
        return
    for error in response.json()["errors"]:
        said = _FOLLOW_UP.sub("", f"{error['field']}: {error['detail']}")
        assert REFUSALS.match(said), f"the description allows what is refused: {said}"


@schemathesis.check
def bad_item_is_told(ctx: CheckContext, response: Response, case: Case) -> None:
    """What is not allowed is answered with 200 for an item of a batch with each=true only, and told of."""
    is_negative = case.meta is not None and case.meta.generation.mode.is_negative
    if case.operation.label == "POST /v1/messages:batch" and is_negative and response.status_code == 200:
        assert (case.query or {}).get("each") in (True, "true"), case.query
        assert any("problem" in one for one in response.json()["results"]), case.body


@schemathesis.check
def allow_is_known(ctx: CheckContext, response: Response, case: Case) -> None:
    """Of a path that may be a name's with `:pause` in it, Allow has the methods of both."""
    if _NAMED.match(case.operation.path) and (response.status_code == 405 or case.method == "OPTIONS"):
        paths = case.operation.schema.raw_schema["paths"]
        either = (case.operation.path, case.operation.path.partition(":")[0])
        known = {method.upper() for path in either for method in paths[path]} & _METHODS
        allowed = {one.strip() for value in response.headers.get("allow", []) for one in value.split(",")}
        assert allowed & _METHODS == known, f"{sorted(allowed)} in place of {sorted(known)}"


_NAMED = re.compile(r"/v1/(sessions/\{client_id\}|groups/\{group\}):")
_METHODS = {"GET", "PUT", "POST", "PATCH", "DELETE"}
_FOLLOW_UP = re.compile(r"then\[\d+\]\.")
_VALIDATORS: dict[str, Any] = {}


def _validator(case: Case, label: str) -> Any:
    """Of the whole schema of this call's body."""
    if label not in _VALIDATORS:
        document = case.operation.schema.raw_schema
        body = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
        _VALIDATORS[label] = jsonschema_rs.Draft202012Validator(
            {**body, "components": document["components"]}, validate_formats=True
        )
    return _VALIDATORS[label]
