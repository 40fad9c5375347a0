"""Job calls to a running server over HTTP: create, renew, commit, abort.

Every failure is one of two errors: `Refused` with the server's problem, or `Unreachable`. If the answer to a
commit is lost, the job's state is checked before it is sent again.
"""

import time
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from ssl import SSLCertVerificationError, SSLContext, create_default_context
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import BaseHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec

from shards.archives import Manifest, Report
from shards.jobs import DONE, PUBLISHING

from .errors import ACTIVE, Refused, SparkError, Unreachable
from .job import Job

TIMEOUT_S = 60.0
COMMIT_TIMEOUT_S = 1_800.0
"""The server may have to count new rows, or to drop many slices."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses before further tries of an unanswered commit."""
WAIT_S = 2.0
"""Pause before the next look whether another job has ended."""

_NOT_THE_CA = (9, 10, 62, 64)
"""OpenSSL's codes for faults that are not the CA's: not yet valid, expired, wrong host, wrong address."""

Body = dict[str, Any]
Answer = TypeVar("Answer")


class _Slices(msgspec.Struct):
    slices: list[Body]
    split_above: int
    next: str | None = None


class _Problem(msgspec.Struct):
    type: str
    title: str = ""
    detail: str = ""
    errors: list[Body] = []


class Remote:
    """A server. `key`: an API key, or empty. `ca`: a file of CA certificates to trust over https, else the
    system's."""

    def __init__(self, url: str, key: str = "", ca: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Unreachable(f"{url!r} is no address of a server, as http://127.0.0.1:8080 is")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Web proxies do not apply between a job and its server.
        handlers: list[BaseHandler] = [ProxyHandler({})]
        if parts.scheme == "https":
            handlers.append(HTTPSHandler(context=_trusting(ca)))
        self._open = build_opener(*handlers).open

    def create(self, kind: str, *, waits: bool = False, **wish: object) -> Job:
        """Create a job that this program runs. `wish`: slice, parts, archive, date. `waits`: until no other
        job is in its way."""
        given = {name: value for name, value in wish.items() if value is not None}
        while True:
            try:
                return self.ask(Job, "POST", "/v1/jobs", {"kind": kind, "run": "caller", **given})
            except Refused as error:
                if not waits or error.slug != ACTIVE:
                    raise
            time.sleep(WAIT_S)

    def get(self, job_id: str, token: str = "") -> Job:
        job = self.ask(Job, "GET", _path(job_id))
        job.token = job.token or token
        return job

    def renew(self, job: Job, progress: tuple[int, int] | None) -> None:
        done, total = progress or (None, None)
        body = {"token": job.token, "done": done, "total": total}
        self.call("POST", _path(job.id, "renew"), {k: v for k, v in body.items() if v is not None})

    def abort(self, job: Job, detail: str) -> None:
        self.call("POST", _path(job.id, "abort"), {"token": job.token, "detail": detail})

    def record(self, job: Job, report: Report) -> Manifest:
        """Have a commit of the archive recorded; returns it as it is to be published. Raises as `commit`."""
        found = self.commit(job, {"archived": msgspec.to_builtins(report)}, PUBLISHING).manifest
        if found is None:
            raise Unreachable(f"{self.url} has recorded a commit, but does not say which")
        return found

    def commit(self, job: Job, found: Mapping[str, object], state: str = DONE) -> Job:
        """Send the job's result; returns the job, which is in `state` then. Retries while there is no answer.
        Raises Refused, Unreachable."""
        body = {"token": job.token, **found}
        for pause_s in (*PAUSES_S, None):
            try:
                return self.ask(Job, "POST", _path(job.id, "commit"), body, COMMIT_TIMEOUT_S)
            except Unreachable:
                if pause_s is None:
                    raise
                time.sleep(pause_s)
            except Refused as error:
                # The try whose answer was lost may have done it.
                if error.status != 409 or (now := self.get(job.id)).state != state:
                    raise
                return now
        raise AssertionError

    def slices(self) -> Iterator[Body]:
        """Every slice; each with the server's `split_above`."""
        cursor = ""
        while True:
            page = self.ask(_Slices, "GET", f"/v1/slices?limit=1000{cursor}")
            for piece in page.slices:
                yield {**piece, "split_above": page.split_above}
            if not page.next:
                return
            cursor = f"&cursor={quote(page.next)}"

    def call(self, method: str, path: str, body: object = None) -> Body:
        return self.ask(Body, method, path, body)

    def ask(
        self, kind: type[Answer], method: str, path: str, body: object = None, timeout_s: float = TIMEOUT_S
    ) -> Answer:
        """Make a call; returns the answer, read as `kind`. Raises Refused, Unreachable."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "Content-Type": "application/json", "Accept": "application/json"}
        request = Request(self.url + path, data, headers, method=method)
        try:
            with self._open(request, timeout=timeout_s) as answer:
                return msgspec.json.decode(answer.read() or b"{}", type=kind)
        except HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None
        except (URLError, OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            if isinstance(why, SSLCertVerificationError):
                raise Unreachable(f"{self.url}: {_mistrust(why)}") from error
            raise Unreachable(f"{self.url} does not answer: {why}") from error
        except ValueError as error:
            raise Unreachable(f"{self.url} answers, but not as a fasti server does: {error}") from error


def _trusting(ca: str) -> SSLContext:
    try:
        return create_default_context(cafile=ca or None)
    except OSError as error:
        raise SparkError(f"the CA file {ca} cannot be used: {error.strerror or error}") from None


def _mistrust(error: SSLCertVerificationError) -> str:
    why = f"the server's certificate is refused: {error.verify_message}"
    return why if error.verify_code in _NOT_THE_CA else f"{why}; give its CA as --ca or FASTI_CA"


def _refusal(status: int, raw: bytes) -> Refused:
    """The error for an answer, with its problem if it has one."""
    try:
        problem = msgspec.json.decode(raw, type=_Problem)
    except ValueError:
        return Refused(status, "", f"the server answers with status {status}")
    details = [" ".join(str(value) for value in one.values() if value) for one in problem.errors]
    slug = problem.type.removeprefix("/problems/").removeprefix("about:blank")
    return Refused(status, slug, problem.detail or problem.title, details)


def _path(job_id: str, verb: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}" + (f":{verb}" if verb else "")
