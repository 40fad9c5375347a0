"""schemathesis in steps that hang together: schedule, cancel, move, list, one after another, beside a model.

Bodies are drawn from /openapi.json, and every answer is held against it, as in test_schemathesis.py. The
model is a dictionary of what has to be pending: an id that was given is found, listed once, as it was
scheduled, and counted until it is cancelled, and not any more then. One by one, in batches, all that match.
The same steps each time; FASTI_SOAK=1 takes many more.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from schemathesis.config import SchemathesisConfig

from tests.support.server import served
from tests.support.soak import SOAK

CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES, STEPS = (300, 50) if SOAK else (40, 20)
ONE, ALL = "/v1/messages/{id}", "/v1/messages"
FAR = "2030-01-01T00:00:00Z"
FIRST, LAST = "2000", "3000"
NOT_THERE = "f" * 32
OTHERWISE = {"deliver_in", "deliver_to", "spread", "key", "expires_in"}
"""What sends a message elsewhere or at another time, or is nearly always refused as it is drawn."""


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[Any]:
    values = "".join(f'{name}.values = ["0"]\n' for name in ("ids", "starts", "sessions", "leases"))
    path = tmp_path / "schemathesis.toml"
    path.write_text(CONFIG.read_text(encoding="utf-8") + values, encoding="utf-8")
    with served(tmp_path / "data", "--clock", "simulated", settings={"spark.enabled": "false"}) as server:
        config = SchemathesisConfig.from_path(path)
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
        assert server.stop() == 0
        assert "Traceback" not in server.output, server.output


class Steps(RuleBasedStateMachine):
    """One walk, on the server whose description is `schema`; each walk has a topic of its own."""

    schema: Any
    walks: Iterator[int]
    seen: Counter[tuple[str, int]]
    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[str, str] = {}
        self.topic = f"walk/{next(self.walks)}"

    def call(self, method: str, path: str, **parts: Any) -> Any:
        return self.answered(self.schema[path][method].Case(**parts))

    def answered(self, case: Any) -> Any:
        """The answer, held against the description."""
        response = case.call()
        case.validate_response(response)
        self.seen[case.operation.label, response.status_code] += 1
        return response

    @rule(target=messages, data=st.data())
    def schedule(self, data: st.DataObject) -> Any:
        """A body as it is described, for a topic of this walk, far ahead."""
        case = data.draw(self.schema[ALL]["POST"].as_strategy())
        case.headers, case.query = {}, {}
        if isinstance(case.body, dict):
            own = {"topic": self.topic, "deliver_at": FAR}
            case.body = {name: value for name, value in case.body.items() if name not in OTHERWISE} | own
        response = self.answered(case)
        if response.status_code != 201:
            assert response.status_code == 422, response.text
            return multiple()
        name = response.json()["id"]
        self.pending[name] = FAR
        return name

    @rule(name=messages)
    def get(self, name: str) -> None:
        response = self.call("GET", ONE, path_parameters={"id": name})
        if name in self.pending:
            assert response.json()["state"] == "pending"
            assert response.json()["topic"] == self.topic
        else:
            assert response.json()["state"] == "cancelled"

    @rule(name=messages)
    def cancel(self, name: str) -> None:
        """204: nobody will get it, however often that is asked."""
        response = self.call("DELETE", ONE, path_parameters={"id": name})
        self.pending.pop(name, None)
        assert response.status_code == 204, response.text

    @rule(name=messages, days=st.integers(1, 28))
    def move(self, name: str, days: int) -> None:
        at = f"2031-02-{days:02d}T00:00:00Z"
        case = self.schema[ONE]["PATCH"].Case(
            path_parameters={"id": name}, body={"deliver_at": at}, media_type="application/json"
        )
        response = self.answered(case)
        assert (response.status_code == 200) == (name in self.pending), response.text
        if name in self.pending:
            self.pending[name] = at

    @rule(target=messages, count=st.integers(1, 3), is_bad=st.booleans(), is_each=st.booleans())
    def batch(self, count: int, is_bad: bool, is_each: bool) -> Any:
        """All or none, or each by itself, with a bad one at the end."""
        good = {"topic": self.topic, "payload": "x", "deliver_at": FAR}
        body = [good] * count + [{**good, "topic": "#"}] * is_bad
        case = self.schema[f"{ALL}:batch"]["POST"].Case(
            query={"each": str(is_each).lower()}, body=body, media_type="application/json"
        )
        response = self.answered(case)
        if is_bad and not is_each:
            assert response.status_code == 422, response.text
            return multiple()
        answer = response.json()
        names = [one["id"] for one in answer["results"] if "id" in one] if is_each else answer["ids"]
        assert len(names) == count, answer
        self.pending |= dict.fromkeys(names, FAR)
        return multiple(*names)

    @rule(days=st.integers(-3, 3), is_dry=st.booleans())
    def shift_all(self, days: int, is_dry: bool) -> None:
        """All of the walk, by whole days."""
        body = {
            "filter": {"topic": self.topic},
            "shift": f"{'-' * (days < 0)}P{abs(days)}D",
            "dry_run": is_dry,
        }
        answer = self.bulk("reschedule", body)
        assert answer["matched"] == len(self.pending)
        if not is_dry:
            self.pending = {name: later(at, days) for name, at in self.pending.items()}

    @rule(limit=st.integers(1, 3))
    def cancel_some(self, limit: int) -> None:
        """The first ones in order of time; which of those that are due at one time is the server's to say."""
        answer = self.bulk("cancel", {"filter": {"topic": self.topic}, "limit": limit})
        assert answer["matched"] == answer["changed"] == min(limit, len(self.pending))
        gone = []
        for name in list(self.pending):
            if self.call("GET", ONE, path_parameters={"id": name}).json()["state"] == "cancelled":
                gone.append(self.pending.pop(name))
        assert len(gone) == answer["changed"]
        assert max(gone, default=FIRST) <= min(self.pending.values(), default=LAST)

    def bulk(self, verb: str, body: dict[str, Any]) -> Any:
        case = self.schema[f"{ALL}:{verb}"]["POST"].Case(body=body, media_type="application/json")
        response = self.answered(case)
        assert response.status_code == 200, response.text
        return response.json()

    @initialize(method=st.sampled_from(("GET", "DELETE")))
    def ask_for_what_is_not_there(self, method: str) -> None:
        assert self.call(method, ONE, path_parameters={"id": NOT_THERE}).status_code == 404

    @initialize(target=messages)
    def schedule_one(self) -> str:
        """Each walk has one to move and to cancel, whatever is drawn."""
        body = {"topic": self.topic, "payload": "x", "deliver_at": FAR}
        response = self.answered(self.schema[ALL]["POST"].Case(body=body, media_type="application/json"))
        name = str(response.json()["id"])
        self.pending[name] = FAR
        return name

    @rule(limit=st.integers(1, 3))
    def list_in_pages(self, limit: int) -> None:
        """Every page, to the end: each pending one once, in order of time."""
        query: dict[str, Any] = {"topic": self.topic, "limit": limit}
        found, dues = [], []
        shown: dict[str, str] = {}
        for _ in range(len(self.pending) + 2):
            page = self.call("GET", ALL, query=query).json()
            found += [message["id"] for message in page["messages"]]
            dues += [message["deliver_at"] for message in page["messages"]]
            assert {message["topic"] for message in page["messages"]} <= {self.topic}
            shown |= {message["id"]: message["deliver_at"] for message in page["messages"]}
            if page["next"] is None:
                break
            query["cursor"] = page["next"]
        assert sorted(found) == sorted(self.pending)
        assert dues == sorted(dues)
        assert shown == {name: at.replace("Z", ".000Z") for name, at in self.pending.items()}

    @invariant()
    def they_are_counted(self) -> None:
        answer = self.call("GET", ALL, query={"topic": self.topic, "count": "true", "limit": 1}).json()
        assert answer["count"] == len(self.pending)


def later(at: str, days: int) -> str:
    return (datetime.fromisoformat(at) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.process
def test_schedule_cancel_and_list_hang_together(schema: Any) -> None:
    seen: Counter[tuple[str, int]] = Counter()
    run_state_machine_as_test(
        type("Walk", (Steps,), {"schema": schema, "walks": count(), "seen": seen}),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=not SOAK,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(dict(seen))
    for label, status in (("POST", 201), ("DELETE", 204), ("DELETE", 404), ("PATCH", 200), ("GET", 200)):
        assert sum(
            number for (name, code), number in seen.items() if name.startswith(label) and code == status
        )
