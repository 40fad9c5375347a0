"""Bodies and answers of the HTTP API as values: no request, no answer on its way, no clock.

In:

    bodies.py          media types, instants and durations of any body, and the words for what is refused
    message_body.py    a message as sent -> a checked message
    batch_body.py      NDJSON or an array of them -> all of them, or each on its own
    schedule_body.py   a schedule as sent -> when it fires and the message that it sends
    drafts.py          a checked message -> the draft that the writer takes

Out:

    shapes.py          the types of all answers
    views.py           messages, slices, shards and sessions as answers
    job_views.py       jobs of the pipeline as answers

Both:

    scalars.py         what single members, parameters and headers look like
"""
