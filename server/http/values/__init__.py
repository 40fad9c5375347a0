"""Bodies and answers of the HTTP API as values: no request, no answer on its way, no clock.

In:

    bodies          media types, instants and durations of any body, and the words for what is refused
    message_body    a message as sent -> a checked message
    batch_body      NDJSON or an array of them -> all of them, or each on its own
    schedule_body   a schedule as sent -> when it fires and the message that it sends
    drafts          a checked message -> the draft that the writer takes

Out:

    shapes          the types of all answers
    views           messages, slices, shards and sessions as answers
    job_views       jobs of the pipeline as answers

Both:

    scalars         what single members, parameters and headers look like
"""
