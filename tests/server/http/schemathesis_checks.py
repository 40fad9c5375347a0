"""A check of schemathesis: an answer's problem is one of those that `x-problems` names for its status."""

from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, Response


@schemathesis.check
def problem_is_named(ctx: CheckContext, response: Response, case: Case) -> None:
    answers: dict[str, Any] = case.operation.definition.raw["responses"]
    named = answers.get(str(response.status_code), {}).get("x-problems")
    if named is not None:
        kind = response.json()["type"]
        assert kind in named, f"{kind} is not among {named}"
