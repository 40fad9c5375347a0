"""With the client that openapi-python-client makes. Arguments: the server's URL, a name of its own."""

import sys
from datetime import UTC, datetime, timedelta

from fasti_client import Client, models
from fasti_client.api.groups import (
    post_groups_group_messages_ack,
    post_groups_group_messages_lease,
    put_groups_group,
)
from fasti_client.api.messages import (
    delete_messages_id,
    get_messages_id,
    patch_messages_id,
    post_messages,
    post_messages_batch,
)

url, name = sys.argv[1:]
client = Client(base_url=url)

at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
wanted = models.MessageRequest(topic=f"{name}/a", payload={"n": 17}, deliver_at=at)
posted = post_messages.sync(client=client, body=wanted)
assert posted.deliver_at == at, posted

shown = get_messages_id.sync(posted.id, client=client)
assert (shown.state, shown.topic, shown.payload) == ("pending", f"{name}/a", {"n": 17}), shown

moved = patch_messages_id.sync(posted.id, client=client, body=models.Move(deliver_in="2h"))
assert moved.deliver_at > at, moved

assert delete_messages_id.sync_detailed(posted.id, client=client).status_code == 204
assert get_messages_id.sync(posted.id, client=client).state == "cancelled"

delays = 3600, "999999d"
items = [models.BatchItem(topic=f"{name}/b", payload="x", deliver_in=delay) for delay in delays]
good, bad = post_messages_batch.sync(client=client, body=items, each=True).results
assert (len(good.id), bool(good.problem)) == (32, False), good
assert (bad.problem.status, bad.problem.errors[0].field) == (422, "deliver_in"), bad
assert post_messages_batch.sync(client=client, body=items[:1]).accepted == 1

terms = models.GroupRequest(filter_=f"{name}/jobs", ack_timeout="30s")
put_groups_group.sync(name, client=client, body=terms)
now = models.MessageRequest(topic=f"{name}/jobs", payload="now", deliver_in=0)
post_messages.sync(client=client, body=now)
asked = models.LeaseMessages(max_=1, wait="20s")
(leased,) = post_groups_group_messages_lease.sync(name, client=client, body=asked).messages
assert (leased.payload, leased.attempt) == ("now", 1), leased
acks = models.AckMessages(lease_ids=[leased.lease_id])
acked = post_groups_group_messages_ack.sync(name, client=client, body=acks)
assert (acked.acked, acked.gone) == (1, []), acked

missing = get_messages_id.sync("f" * 32, client=client)
assert missing.type_ == "/problems/not-found", missing
print("all done")
