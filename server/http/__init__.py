"""HTTP, one of the two doors of the server: calls are read, decided in the writer and answered.

Said and read
    values/        bodies and answers as values: read, checked, shown
    problems.py    every error as RFC 9457 has it: the table of slugs, the middleware
    differing.py   which field another request under a key has otherwise
    answers.py     JSON on its way out, and what the write path refuses
    requests.py    path, query and body of a request, read strictly
    calls.py       what a call takes and gives, said beside its handler

Who calls
    access.py      the key of a request, and what it may

What calls share
    timeline.py    the timeline as calls read it, out of reach of commit and store
    cursors.py     where the next page begins, as text
    selection.py   which rows a call asks for: selected, shown, counted
    density.py     how many messages are pending in each stretch of time
    upcoming.py    what a schedule will send
    spread.py      the emptiest moment of a window
    lag.py        how far a session or group is behind, and what sets it back
    undone.py      what a place has not finished, and what a call says becomes of it
    turns.py       long calls take turns, step by step or at a thread
    claims.py      how many places ask for a message
    streams.py     answers without an end: how many, and that they end
    bulk.py        changes of many in one go of the writer
    posting.py     drafts placed in the writer, and the answer to a single one
    batching.py    what a batch is answered with
    intake.py      messages that have been read: checked, drafted, placed
    leasing.py     calls for leases: what they ask for, and what they are answered with

The calls
    routes/        one resource a file
    page.py        the description as a page for people
    openapi.py     all calls described, as OpenAPI

Connections
    cors.py         which pages in a browser may read answers
    written.py      answers as bytes, where aiohttp does not write them
    admission.py    how many bytes a body may have, and all bodies at once
    heads.py        the head of a request, read strictly
    framing.py      where the body of a request ends
    protocol.py     what aiohttp has of a connection: one request after the other
    front.py        a connection; messages, small batches and calls for leases are answered here

Each imports only what stands above it. A call knows the parts that it uses and never the app: server/site.py,
on the ground floor, hands them out.
"""
