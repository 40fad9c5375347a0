"""HTTP, one of the two doors of the server: calls read, decided in the writer, answered.

A call knows the parts that it uses, never the app: server/site.py, on the ground floor, hands them out. From
where a connection begins to where its answer is made:

    front       where connections begin: `POST /v1/messages` answered without a framework, the rest handed on
    protocol    a connection of aiohttp's, which answers what is no HTTP with a problem
    gate        how many bytes of bodies may be in the server at once
    routes/     the calls, one resource a file
    calls       what a call takes and gives, said beside its handler
    requests    path, query and body of a request, read strictly
    answers     JSON on its way out, and what the write path refuses
    problems    every error as RFC 9457 says it: the table of slugs, the middleware
    values/     bodies and answers as values: read, checked, shown; knows none of the other files here

    timeline    the timeline as calls read it, out of reach of commit and store
    selection   which rows a call asks for: selected, shown, counted
    density     how many messages are pending in each stretch of time
    spread      the emptiest moment of a window
    posting     drafts placed in the writer, and the answer to a single one

    openapi     the whole described by itself, as OpenAPI
    page        the same as a page for people
"""
