"""The calls, one resource a file: a class that is given the parts that it uses, and says its routes.

    messages.py    `/v1/messages`, `/v1/messages/{id}`: schedule one, look at it, move it, cancel it
    batch.py       `/v1/messages:batch`: many in one request
    listing.py     `GET /v1/messages`: pages and counts
    export.py      `/v1/messages:export`: what is pending as NDJSON
    control.py     `/v1/messages:cancel`, `:reschedule`: many by filter
    explain.py     `/v1/messages/{id}/explain`: where one lies
    schedules.py   `/v1/schedules`: recurring ones
    calendar.py    `/v1/schedules.ics`: what they will send, for calendars
    places.py      what `/v1/sessions`, `/v1/groups` and `/v1/endpoints` share
    endpoints.py   `/v1/endpoints`: where messages are posted
    sessions.py    `/v1/sessions`: who subscribes, how far each has read
    groups.py      `/v1/groups`: those who divide messages, made, paused, ended
    leases.py      `/v1/groups/{group}/messages`: work that is asked for
    kept.py        what `/v1/dead` and `/v1/retries` share
    dead.py        `/v1/dead`: what was given up, sent again or dropped
    retries.py     `/v1/retries`: what waits for its next try, had tried now, given up or dropped
    slices.py      `/v1/slices`: how the timeline is cut, down to a shard
    timeline.py    `/v1/timeline/density`: how many are pending when
    jobs.py        `/v1/jobs`: the hand-over of the pipeline
    clock.py       `/v1/clock:advance`: a simulated clock moved
    backups.py     `/v1/backups`: a copy to start a server on
    events.py      `/v1/events`: what moves, as it moves
    info.py        `/v1/info`, `/livez`, `/readyz`, `/metrics`

None knows another, but for places.py and kept.py, which theirs know, and the density kept.py.
"""
