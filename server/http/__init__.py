"""HTTP, one of the server's two protocols: calls are read, decided in the writer and answered.

Bodies and answers
    values/        bodies and answers as values: reading, checks, views
    problems.py    errors in the format of RFC 9457: the table of slugs, the middleware
    differing.py   the field in which another request under a key differs
    answers.py     JSON answers, and refusals of the write path as problems
    requests.py    strict reading of path, query and body
    calls.py       description of a call, beside its handler

Callers
    access.py      the key of a request, and its rights

Shared by calls
    timeline.py    the timeline, read only, without access to commit and store
    cursors.py     cursors: where the next page begins, as text
    selection.py   the rows that a call asks for: selected, shown, counted
    density.py     pending messages per span of time
    upcoming.py    the next fires of a schedule
    spread.py      chooses the emptiest moment of a window
    backlog.py     unfinished messages of a place, its lag, and what a call does with them
    why.py         what has happened to a message, in sentences
    turns.py       turns of long calls, in steps or in a thread
    claims.py      number of places that would get a message
    streams.py     endless answers: their number, and their end
    bulk.py        many changes in one request to the writer
    posting.py     placing drafts in the writer, and the answer for a single one
    by_key.py      the message under an idempotency key, judged and decided
    batching.py    answers to a batch
    intake.py      from messages read to messages placed: checks, drafts
    leasing.py     calls for leases: requests and answers
    following.py   acks with follow-ups

The calls
    routes/        one resource a file
    page.py        the description as a page for users
    schemas.py     types as JSON schemas that generators of clients can read
    openapi.py     all calls described, as OpenAPI

Connections
    cors.py         pages in a browser that may read answers
    written.py      answers as bytes, when aiohttp does not write them
    admission.py    admission control: bytes of a body, and of all bodies at once
    heads.py        strict reading of a request's head
    framing.py      finds the end of a request's body
    protocol.py     aiohttp's side of a connection: one request after the other
    front.py        a connection; the quick path for messages, small batches and calls for leases
    usual.py        requests of the quick path, read
    desk.py         ... decided and answered

Each imports only what stands above it. A call knows the parts that it uses, never the app: server/site.py, on
the ground floor, passes them in.
"""
