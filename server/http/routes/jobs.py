"""`/v1/jobs`: the pipeline's jobs over HTTP. server/jobs/pipeline.py does the work.

    POST /v1/jobs            {"kind", "run"?, ...}      201; with the token if the caller runs it
    POST /v1/jobs/{id}:commit, :abort, :renew           200
    GET  /v1/jobs, /v1/jobs/{id}                        everything except the token
    GET  /v1/archive                                    what archive and compact jobs have committed

Instants for programs are Unix ms (`..._ms`); `start` and the like are for people.
"""

from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from shards.archives import FILES_MAX, URL_MAX, DroppedSlice, FileFault, Report
from shards.handover import PARTS_MAX
from shards.jobs import ARCHIVE, COMPACT, EXPIRE, SPLIT, JobRow
from timeline.slices import Counts

from ...jobs.archiving import Archiving
from ...jobs.expiring import Expiries
from ...jobs.pipeline import Job, JobRefused, Pipeline, lease_of
from ...jobs.splitting import Splits
from ...settings.config import Slices
from ..answers import RETRY_AFTER, json_answer, refusals
from ..calls import ADMIN, WRITES, Gives, described
from ..problems import SLUGS, Problem
from ..requests import body_of, limit_of, number_parameter
from ..values import shapes
from ..values.bodies import FieldError, instant_ms
from ..values.job_views import job_view
from ..values.scalars import GIVEN, NULL, PAGED, Location, Query, rules

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Parts = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 2, "maximum": PARTS_MAX})]
Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
T = TypeVar("T")
NO_JOB = ("too-near", "job-active", "nothing-to-expire", "nothing-to-do", "no-spark", "wrong-state", *WRITES)
TOKEN = "2f6c61d0"
"""In examples: the token from the call that made the job."""
PAGE = 100
"""Commits of one answer."""
COMMITS: Query = {
    "since": Annotated[
        int, msgspec.Meta(ge=0, le=10**15 - 1, description="Only commits with a higher number")
    ],
    "limit": Annotated[int, msgspec.Meta(ge=1, le=PAGE, description="Commits of a page")],
}
NOT_NOW = ("not-found", "stale-token", "wrong-state", "too-near", *WRITES)


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST: the kind, who runs it; of a split the slice by its start; else where a caller
    archives; of a compaction the day."""

    kind: Literal["split", "archive", "expire", "compact"]
    slice: str | int | None = None
    parts: Parts | None = None
    run: Literal["server", "caller"] = "server"
    archive: Annotated[str, msgspec.Meta(max_length=URL_MAX)] | None = None
    date: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None


FIELDS = {
    SPLIT: ("slice", "parts"),
    ARCHIVE: ("archive",),
    EXPIRE: ("archive",),
    COMPACT: ("archive", "date"),
}
"""Which members a kind of job takes."""
_OTHERS = ("slice", "parts", "archive", "date")
_KINDS = rules(
    {
        "anyOf": [
            {
                "properties": {
                    "kind": {"const": kind},
                    **dict.fromkeys((one for one in _OTHERS if one not in fields), NULL),
                    **({"slice": GIVEN} if kind == SPLIT else {}),
                },
                "required": ["slice"] if kind == SPLIT else [],
            }
            for kind, fields in FIELDS.items()
        ]
    }
)


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split's counts of a piece. `rows`: all rows; `live`: rows that are not cancelled or moved; `bytes`:
    of the values, plus 22 for each key."""

    rows: Whole
    live: Whole
    bytes: Size


class CommitJob(msgspec.Struct, forbid_unknown_fields=True):
    """The body of :commit. A split gives `cuts` (Unix ms, rising) and `pieces`, one more than `cuts`. An
    expiry gives `slices`, or the `faults` that it has found in the archive. An archive or compact job gives
    what it has written, `archived`, and then the number of the commit that it has `published`."""

    token: str
    cuts: list[int] | None = None
    pieces: list[Piece] | None = None
    slices: list[DroppedSlice] | None = None
    faults: Annotated[list[FileFault], msgspec.Meta(max_length=FILES_MAX)] | None = None
    archived: Report | None = None
    published: Size | None = None


RESULTS = (("cuts", "pieces"), ("slices",), ("faults",), ("archived",), ("published",))
"""Members that commit a job: exactly one of these."""
_CUT = rules(
    {
        "anyOf": [
            {
                "required": list(names),
                "properties": {one: GIVEN if one in names else NULL for some in RESULTS for one in some},
            }
            for names in RESULTS
        ]
    }
)


class Abort(msgspec.Struct, forbid_unknown_fields=True):
    """The body of :abort: the reason, for people."""

    token: str
    detail: str = ""


class Renew(msgspec.Struct, forbid_unknown_fields=True):
    """The body of :renew: progress, in any unit."""

    token: str
    done: int | None = None
    total: int | None = None


_NEW = msgspec.json.Decoder(JobRequest)
_COMMIT = msgspec.json.Decoder(CommitJob)
_ABORT = msgspec.json.Decoder(Abort)
_RENEW = msgspec.json.Decoder(Renew)
DETAIL_MAX = 1_000


class JobRoutes:
    def __init__(
        self, pipeline: Pipeline, splits: Splits, archiving: Archiving, expiries: Expiries, slices: Slices
    ) -> None:
        """`slices`: the settings."""
        self._pipeline = pipeline
        self._splits = splits
        self._archiving = archiving
        self._expiries = expiries
        self._slices = slices

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/jobs", self.create),
            web.get("/v1/jobs", self.list),
            web.get("/v1/jobs/{id:[^:/]+}", self.get),
            web.get("/v1/jobs/{id}/log", self.log),
            web.post("/v1/jobs/{id}:commit", self.commit),
            web.post("/v1/jobs/{id}:abort", self.abort),
            web.post("/v1/jobs/{id}:renew", self.renew),
            web.get("/v1/archive", self.archive),
        ]

    @described(
        "Start a job of the pipeline",
        ADMIN,
        Gives(201, shapes.JobView, {"Location": Location}),
        body=Annotated[JobRequest, _KINDS],
        example={"kind": "split", "slice": "2030-01-01T00:00:00Z", "parts": 4},
        problems=("not-found", *NO_JOB),
    )
    async def create(self, request: web.Request) -> web.Response:
        body = await body_of(request, _NEW)
        for name in _OTHERS:
            if getattr(body, name) is not None and name not in FIELDS[body.kind]:
                raise FieldError(name, f"is not for a job of kind {body.kind}")
        job = await _result(self._created(body))
        view = self._view(job)
        if body.run == "caller":
            view.token = job.token
        answer = json_answer(view, 201)
        answer.headers["Location"] = f"/v1/jobs/{job.row.id}"
        return answer

    def _created(self, body: JobRequest) -> Awaitable[Job]:
        archive = body.archive or ""
        match body.kind:
            case "expire":
                return self._expiries.create(body.run, archive)
            case "archive":
                return self._archiving.create(body.run, archive)
            case "compact":
                return self._archiving.create_compaction(body.run, body.date or "", archive)
        if body.parts is not None and not 2 <= body.parts <= PARTS_MAX:
            raise FieldError("parts", f"must be from 2 to {PARTS_MAX}, not {body.parts}")
        return self._splits.create(_slice_ms(body.slice), body.parts or 0, body.run)

    @described("Jobs, open ones first", ADMIN, query=PAGED)
    async def list(self, request: web.Request) -> shapes.JobPage:
        limit, cursor = limit_of(request), request.query.get("cursor", "")
        if len(cursor) not in (0, 45):
            raise FieldError("cursor", "was not issued by this server")
        jobs = sorted((job for job in self._pipeline if _rank(job) > cursor), key=_rank)
        following = _rank(jobs[limit - 1]) if len(jobs) > limit else None
        return shapes.JobPage(following, [self._view(job) for job in jobs[:limit]])

    @described("A job", ADMIN, problems=("not-found",))
    async def get(self, request: web.Request) -> shapes.JobView:
        job = self._pipeline.get(request.match_info["id"])
        if job is None:
            raise Problem("not-found", f"Job {request.match_info['id'][:40]} not found.")
        return self._view(job)

    @described(
        "What the server's program for a job wrote last",
        ADMIN,
        Gives(200, str, media="text/plain"),
        problems=("not-found",),
    )
    async def log(self, request: web.Request) -> web.Response:
        job_id = request.match_info["id"]
        kept = self._pipeline.log_of(job_id)
        if kept is None:
            raise Problem("not-found", f"No output of the program for job {job_id[:40]} is kept.")
        return web.Response(text=kept, headers={"X-Content-Type-Options": "nosniff"})

    @described(
        "Hand back what was counted or archived: the slice is cut, or dropped, or a commit recorded",
        ADMIN,
        body=Annotated[CommitJob, _CUT],
        example={
            "token": TOKEN,
            "cuts": [1_893_457_800_000],
            "pieces": [
                {"rows": 600_000, "live": 599_000, "bytes": 120_000_000},
                {"rows": 601_000, "live": 600_500, "bytes": 121_000_000},
            ],
        },
        problems=(*NOT_NOW, "bad-manifest"),
    )
    async def commit(self, request: web.Request) -> shapes.JobView:
        body, job_id = await body_of(request, _COMMIT), request.match_info["id"]
        given = [name for names in RESULTS for name in names if getattr(body, name) is not None]
        if tuple(given) not in RESULTS:
            raise FieldError("cuts", "and pieces; slices; faults; archived; or published: one of these")
        return self._view(await _result(self._committed(job_id, body)))

    def _committed(self, job_id: str, body: CommitJob) -> Awaitable[Job | JobRow]:
        token = body.token
        if body.archived is not None:
            return self._archiving.commit(job_id, token, body.archived)
        if body.published is not None:
            return self._archiving.publish(job_id, token, body.published)
        if body.slices is not None:
            return self._expiries.commit(job_id, token, body.slices)
        if body.faults is not None:
            return self._expiries.refuse(job_id, token, body.faults)
        counts = [Counts(piece.rows, piece.live, piece.bytes) for piece in body.pieces or ()]
        return self._splits.commit(job_id, token, body.cuts or [], counts)

    @described(
        "Forget the job",
        ADMIN,
        body=Abort,
        example={"token": TOKEN, "detail": "the disk of the worker is full"},
        problems=NOT_NOW,
    )
    async def abort(self, request: web.Request) -> shapes.JobView:
        body = await body_of(request, _ABORT)
        detail = body.detail[:DETAIL_MAX]
        row = await _result(self._pipeline.abort(request.match_info["id"], body.token, detail))
        return self._view(row)

    @described(
        "Keep the lease",
        ADMIN,
        body=Renew,
        example={"token": TOKEN, "done": 40_000, "total": 100_000},
        problems=NOT_NOW,
    )
    async def renew(self, request: web.Request) -> shapes.Lease:
        body = await body_of(request, _RENEW)
        progress = None
        if body.done is not None or body.total is not None:
            progress = body.done or 0, body.total or 0
        job = await _result(self._pipeline.renew(request.match_info["id"], body.token, progress))
        return shapes.Lease(job.row.id, job.row.state, lease_of(job.row))

    @described("Commits of the archive whose manifests are in it", ADMIN, query=COMMITS)
    async def archive(self, request: web.Request) -> shapes.ArchivePage:
        text = request.query.get("since", "0")
        since = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
        row = self._archiving.archive.row
        if since < 0:
            raise FieldError("since", f"must be the number of a commit, not {text[:40]!r}")
        if since < row.first - 1:
            why = f"commits up to {row.first - 1} are recorded no longer: read the manifests in {row.url}"
            raise FieldError("since", f"{why}, or give a later one")
        found = self._archiving.archive.published(since, number_parameter(request, "limit", PAGE, PAGE))
        return shapes.ArchivePage(found, found[-1].number if found else since)

    def _view(self, job: Job | JobRow) -> shapes.JobView:
        return job_view(job, self._slices)


def _rank(job: Job | JobRow) -> str:
    """Sorts jobs, and is the cursor behind one: open ones first, each newest first."""
    row = job.row if isinstance(job, Job) else job
    age = (1 << 48) - (row.ended_ms or row.created_ms)
    return f"{row.ended_ms > 0:d}{age:012x}{row.id}"


def _slice_ms(given: str | int | None) -> int:
    if given is None:
        raise FieldError("slice", "is needed: the start of the slice to split")
    return instant_ms("slice", str(given))


async def _result(work: Awaitable[T]) -> T:
    """What the pipeline's work gives. Raises Problem for a refusal."""
    try:
        with refusals():
            return await work
    except JobRefused as error:
        slug = error.slug if error.slug in SLUGS else "refused"
        faults = [f._asdict() for f in error.faults]
        extra: dict[str, Any] = {"errors": faults} if faults else {}
        if slug == "refused":
            extra = {"errors": [{"field": error.slug, "detail": str(error)}]}
        headers = RETRY_AFTER if slug == "over-quota" else None
        raise Problem(slug, str(error), headers=headers, **extra) from None
