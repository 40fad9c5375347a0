"""With the client of `openapi-generator -g python`. Arguments: the server's URL, a name of its own."""

import sys
from datetime import UTC, datetime, timedelta

import openapi_client as fasti

url, name = sys.argv[1:]
api = fasti.ApiClient(fasti.Configuration(host=url))
messages, groups = fasti.MessagesApi(api), fasti.GroupsApi(api)

at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
wanted = fasti.MessageRequest(topic=f"{name}/a", payload={"n": 17}, deliver_at=fasti.When(at))
posted = messages.post_messages(wanted)
assert posted.deliver_at == at, posted

shown = messages.get_messages_id(posted.id)
assert (shown.state, shown.topic, shown.payload) == ("pending", f"{name}/a", {"n": 17}), shown
assert [one.id for one in messages.get_messages(topic=f"{name}/#").messages] == [posted.id]

moved = messages.patch_messages_id(posted.id, fasti.Move(deliver_in=fasti.Delay("2h")))
assert moved.deliver_at > at, moved

messages.delete_messages_id(posted.id)
assert messages.get_messages_id(posted.id).state == "cancelled"

delays = fasti.Delay(3600), fasti.Delay("999999d")
items = [fasti.BatchItem(topic=f"{name}/b", payload="x", deliver_in=delay) for delay in delays]
good, bad = messages.post_messages_batch(items, each=True).results
assert (len(good.id), good.problem) == (32, None), good
assert (bad.problem.status, bad.problem.errors[0].var_field) == (422, "deliver_in"), bad
assert messages.post_messages_batch(items[:1]).accepted == 1

groups.put_groups_group(name, fasti.GroupRequest(filter=f"{name}/jobs", ack_timeout=fasti.Delay("30s")))
messages.post_messages(fasti.MessageRequest(topic=f"{name}/jobs", payload="now", deliver_in=fasti.Delay(0)))
asked = fasti.LeaseMessages(max=1, wait=fasti.Delay("20s"))
(leased,) = groups.post_groups_group_messages_lease(name, asked).messages
assert (leased.payload, leased.attempt) == ("now", 1), leased
acked = groups.post_groups_group_messages_ack(name, fasti.AckMessages(lease_ids=[leased.lease_id]))
assert (acked.acked, acked.gone) == (1, []), acked

try:
    messages.get_messages_id("f" * 32)
except fasti.exceptions.NotFoundException as error:
    problem = error.data
assert problem.type == "/problems/not-found", problem
print("all done")
