"""The calls, one resource a file: a class that is given the parts it uses, and says its routes.

messages    `/v1/messages`, `/v1/messages/{id}`: schedule one, look at it, move it, cancel it
batch       `/v1/messages:batch`: many in one request
listing     `GET /v1/messages`: pages and counts
export      `/v1/messages:export`: what is pending as NDJSON
control     `/v1/messages:cancel`, `:reschedule`: many by filter
explain     `/v1/messages/{id}/explain`: where one lies
schedules   `/v1/schedules`: recurring ones
sessions    `/v1/sessions`: who subscribes and how far each has read
slices      `/v1/slices`: how the timeline is cut, down to a shard
timeline    `/v1/timeline/density`: how many are pending when
jobs        `/v1/jobs`: the hand-over of the pipeline
clock       `/v1/clock:advance`: a simulated clock moved
backups     `/v1/backups`: a copy to start on
info        `/v1/info`, `/livez`, `/readyz`, `/metrics`
"""
