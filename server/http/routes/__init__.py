"""The calls, one resource a file: a class that takes the parts that it uses, and lists its routes.

    messages.py    `/v1/messages`, `/v1/messages/{id}`: schedule one, look at it, move it, cancel it
    batch.py       `/v1/messages:batch`: many in one request
    listing.py     `GET /v1/messages`: pages and counts
    export.py      `/v1/messages:export`: what is pending as NDJSON
    control.py     `/v1/messages:cancel`, `:reschedule`: many by filter
    results.py     `/v1/messages/{id}/result`: what a worker has answered, waited for
    explain.py     `/v1/messages/{id}/explain`, `why`: where one is stored, what has happened to it
    schedules.py   `/v1/schedules`: recurring ones
    calendar.py    `/v1/schedules.ics`: their next fires, for calendars
    places.py      shared by `/v1/sessions`, `/v1/groups` and `/v1/endpoints`
    endpoints.py   `/v1/endpoints`: where messages are posted
    sessions.py    `/v1/sessions`: subscribers, and how far each has read
    groups.py      `/v1/groups`: shared subscriptions, made, paused, deleted
    ordering_keys.py  `/v1/groups/{group}/keys`: ordering keys in trouble, held, released
    leases.py      `/v1/groups/{group}/messages`: leases for workers
    kept.py        shared by `/v1/dead` and `/v1/retries`
    dead.py        `/v1/dead`: dead letters, sent again or dropped
    retries.py     `/v1/retries`: messages that wait for a try: try now, give up or drop
    slices.py      `/v1/slices`: the timeline's slices, down to a shard
    timeline.py    `/v1/timeline/density`: pending messages over time
    jobs.py        `/v1/jobs`: the hand-over of the pipeline
    clock.py       `/v1/clock:advance`: a simulated clock moved
    backups.py     `/v1/backups`: a copy to start a server on
    events.py      `/v1/events`: live figures
    tail.py        `/v1/tail`: messages as they are dispatched
    history.py     `/v1/history`: figures of the last hour and day
    info.py        `/v1/info`, `/livez`, `/readyz`, `/metrics`

None imports another, except that the files of their resources import places.py, ordering_keys.py and kept.py,
ordering_keys.py imports places.py, and timeline.py imports kept.py.
"""
