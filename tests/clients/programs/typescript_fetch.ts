// With the client that `openapi-generator -g typescript-fetch` makes. Arguments: the server's URL, a name of its own.
import { Configuration, GroupsApi, MessagesApi, ResponseError } from "./fetch/index.js";

declare const process: { argv: string[] };
const [url, name] = process.argv.slice(2) as [string, string];
const configuration = new Configuration({ basePath: url });
const messages = new MessagesApi(configuration);
const groups = new GroupsApi(configuration);

function must(holds: boolean, what: unknown): void {
  if (!holds) throw new Error(JSON.stringify(what));
}

const at = new Date(Math.floor(Date.now() / 1000) * 1000 + 3_600_000);
const posted = await messages.postMessages({
  messageRequest: { topic: `${name}/a`, payload: { n: 17 }, deliverAt: at },
});
must(posted.deliverAt.getTime() === at.getTime(), posted);

const shown = await messages.getMessagesId({ id: posted.id });
must(shown.state === "pending" && shown.payload.n === 17, shown);
const listed = await messages.getMessages({ topic: `${name}/#`, dueFrom: new Date() });
must(listed.messages.length === 1, listed);

const moved = await messages.patchMessagesId({ id: posted.id, move: { deliverIn: "2h" } });
must(moved.deliverAt > at, moved);

await messages.deleteMessagesId({ id: posted.id });
must((await messages.getMessagesId({ id: posted.id })).state === "cancelled", posted);

const batchItem = [3600, "999999d"].map((deliverIn) => ({ topic: `${name}/b`, payload: "x", deliverIn }));
const [good, bad] = (await messages.postMessagesBatch({ batchItem, each: true })).results;
must(good?.id !== undefined && good.problem === undefined, good);
must(bad?.problem?.status === 422 && bad.problem.errors?.[0]?.field === "deliver_in", bad);

await groups.putGroupsGroup({ group: name, groupRequest: { filter: `${name}/jobs`, ackTimeout: "30s" } });
await messages.postMessages({ messageRequest: { topic: `${name}/jobs`, payload: "now", deliverIn: 0 } });
const { messages: leased } = await groups.postGroupsGroupMessagesLease({
  group: name,
  leaseMessages: { max: 1, wait: "20s" },
});
must(leased.length === 1 && leased[0]!.payload === "now" && leased[0]!.attempt === 1, leased);
const acked = await groups.postGroupsGroupMessagesAck({
  group: name,
  ackMessages: { leaseIds: [leased[0]!.leaseId] },
});
must(acked.acked === 1 && acked.gone.length === 0, acked);

const status = await messages.getMessagesId({ id: "f".repeat(32) }).then(
  () => 200,
  (error: ResponseError) => error.response.status,
);
must(status === 404, status);
console.log("all done");
