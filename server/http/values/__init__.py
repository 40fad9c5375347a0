"""Bodies and answers of the HTTP API as values, without connections, requests or clocks.

    scalars.py         types of single members, parameters and headers

In
    bodies.py          media types, instants and durations of any body, and the wording of refusals
    unpack.py          a compressed body -> its content, within a bound
    message_body.py    a message as sent, and the checks of its fields
    drafts.py          a checked message -> the draft that the writer takes
    reader.py          messages as sent -> drafts, or checked messages that need more work
    post_body.py       a single message as sent, perhaps debounced
    upsert_body.py     what the message under a key should be, as sent
    batch_body.py      NDJSON or an array of them -> messages and errors
    schedule_body.py   a schedule as sent -> when it fires and the message that it sends
    group_body.py      a group as sent -> its terms
    endpoint_body.py   an endpoint as sent -> its URL and settings

Out
    shapes.py          the types of all answers
    views.py           messages, slices, shards and sessions as answers
    schedule_views.py  schedules and their fires as answers
    endpoint_views.py  endpoints as answers
    job_views.py       jobs of the pipeline as answers

Each imports only what stands above it.
"""
