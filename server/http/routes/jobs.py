"""`/v1/jobs`: the pipeline's jobs over HTTP. server/jobs/pipeline.py does the work.

    POST /v1/jobs            {"kind","slice"?,"parts"?,"run"?}    201; with the token if the caller runs it
    POST /v1/jobs/{id}:commit, :abort, :renew                     200
    GET  /v1/jobs, /v1/jobs/{id}                                  everything except the token

Instants for programs are Unix ms (`..._ms`); `start` and the like are for people.
"""

from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from shards.handover import PARTS_MAX
from shards.jobs import EXPIRE, JobRow
from timeline.slices import Counts

from ...jobs.expiring import DroppedSlice, Expiries
from ...jobs.pipeline import Job, JobRefused, Pipeline, lease_of
from ...jobs.splitting import Splits
from ...settings.config import Slices
from ..answers import RETRY_AFTER, json_answer, refusals
from ..calls import ADMIN, WRITES, Gives, described
from ..problems import SLUGS, Problem
from ..requests import body_of, limit_of
from ..values import shapes
from ..values.bodies import FieldError, instant_ms
from ..values.job_views import job_view
from ..values.scalars import GIVEN, NULL, PAGED, Location, only_one, rules, some_of

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Parts = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 2, "maximum": PARTS_MAX})]
Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
T = TypeVar("T")
NO_JOB = ("too-near", "job-active", "nothing-to-expire", "no-spark", "wrong-state", *WRITES)
TOKEN = "2f6c61d0"
"""In examples: the token from the call that made the job."""
NOT_NOW = ("not-found", "stale-token", "wrong-state", "too-near", *WRITES)


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST: the kind, the slice by its start, who runs it, and where a caller archives."""

    kind: Literal["split", "expire"]
    slice: str | int | None = None
    parts: Parts | None = None
    run: Literal["server", "caller"] = "server"
    archive: Annotated[str, msgspec.Meta(max_length=1_024)] | None = None


_SPLITS = {
    "properties": {"kind": {"const": "split"}, "slice": GIVEN, "archive": NULL},
    "required": ["slice"],
}
_EXPIRES = {"properties": {"kind": {"const": "expire"}, "slice": NULL, "parts": NULL}}
_KINDS = rules({"anyOf": [_SPLITS, _EXPIRES]})


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split's counts of a piece. `rows`: all rows; `live`: rows that are not cancelled or moved; `bytes`:
    of the values, plus 22 for each key."""

    rows: Whole
    live: Whole
    bytes: Size


class CommitJob(msgspec.Struct, forbid_unknown_fields=True):
    """The body of :commit. A split gives `cuts` (Unix ms, rising) and `pieces`, one more than `cuts`. An
    expiry gives `slices`."""

    token: str
    cuts: list[int] | None = None
    pieces: list[Piece] | None = None
    slices: list[DroppedSlice] | None = None


_CUT = rules(
    only_one("cuts", "slices"),
    only_one("pieces", "slices"),
    some_of("cuts", "slices"),
    some_of("pieces", "slices"),
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
    def __init__(self, pipeline: Pipeline, splits: Splits, expiries: Expiries, slices: Slices) -> None:
        """`slices`: the settings."""
        self._pipeline = pipeline
        self._splits = splits
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
        if body.kind == EXPIRE:
            if body.slice is not None or body.parts is not None:
                raise FieldError("slice", "is for a split: what expires is what is behind retention")
            job = await _result(self._expiries.create(body.run, body.archive or ""))
        else:
            if body.archive is not None:
                raise FieldError("archive", "is for an expiry: a split writes no files")
            if body.parts is not None and not 2 <= body.parts <= PARTS_MAX:
                raise FieldError("parts", f"must be from 2 to {PARTS_MAX}, not {body.parts}")
            start_ms = _slice_ms(body.slice)
            job = await _result(self._splits.create(start_ms, body.parts or 0, body.run))
        view = self._view(job)
        if body.run == "caller":
            view.token = job.token
        answer = json_answer(view, 201)
        answer.headers["Location"] = f"/v1/jobs/{job.row.id}"
        return answer

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
        view = self._view(job)
        if isinstance(job, JobRow) and job.files:
            view.files = job.files
        return view

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
        "Hand back what was counted or archived: the slice is cut, or what expires is dropped",
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
        if body.slices is not None and body.cuts is None and body.pieces is None:
            row = await _result(self._expiries.commit(job_id, body.token, body.slices))
        elif body.cuts is not None and body.pieces is not None and body.slices is None:
            counts = [Counts(piece.rows, piece.live, piece.bytes) for piece in body.pieces]
            row = await _result(self._splits.commit(job_id, body.token, body.cuts, counts))
        else:
            raise FieldError("cuts", "and `pieces` commit a split, `slices` alone an expiry")
        return self._view(row)

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
