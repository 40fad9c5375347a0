// With the types that openapi-typescript makes, and openapi-fetch. Arguments: the server's URL, a name of its own.
import createClient from "openapi-fetch";

import type { paths } from "./fasti.js";

declare const process: { argv: string[] };
const [url, name] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl: url });

function given<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) throw new Error(`${answer.response.status} ${JSON.stringify(answer.error)}`);
  return answer.data;
}

function must(holds: boolean, what: unknown): void {
  if (!holds) throw new Error(JSON.stringify(what));
}

const at = new Date(Math.floor(Date.now() / 1000) * 1000 + 3_600_000).toISOString();
const posted = given(
  await client.POST("/v1/messages", { body: { topic: `${name}/a`, payload: { n: 17 }, deliver_at: at } }),
);
must(posted.deliver_at === at, posted);

const path = { id: posted.id };
const shown = given(await client.GET("/v1/messages/{id}", { params: { path } }));
must(shown.state === "pending" && shown.topic === `${name}/a`, shown);

const moved = given(
  await client.PATCH("/v1/messages/{id}", { params: { path }, body: { deliver_in: "2h" } }),
);
must(moved.deliver_at > at, moved);

must((await client.DELETE("/v1/messages/{id}", { params: { path } })).response.status === 204, posted);
must(given(await client.GET("/v1/messages/{id}", { params: { path } })).state === "cancelled", posted);

const items = [3600, "999999d"].map((deliver_in) => ({ topic: `${name}/b`, payload: "x", deliver_in }));
const each = given(
  await client.POST("/v1/messages:batch", { params: { query: { each: true } }, body: items }),
);
if (!("results" in each)) throw new Error(JSON.stringify(each));
const [good, bad] = each.results;
must(good?.id !== undefined && good.problem === undefined, good);
must(bad?.problem?.status === 422 && bad.problem.errors?.[0]?.field === "deliver_in", bad);

const group = { params: { path: { group: name } } };
given(
  await client.PUT("/v1/groups/{group}", { ...group, body: { filter: `${name}/jobs`, ack_timeout: "30s" } }),
);
given(
  await client.POST("/v1/messages", { body: { topic: `${name}/jobs`, payload: "now", deliver_in: 0 } }),
);
const { messages: leased } = given(
  await client.POST("/v1/groups/{group}/messages:lease", { ...group, body: { max: 1, wait: "20s" } }),
);
must(leased.length === 1 && leased[0]!.payload === "now" && leased[0]!.attempt === 1, leased);
const acked = given(
  await client.POST("/v1/groups/{group}/messages:ack", {
    ...group,
    body: { lease_ids: [leased[0]!.lease_id] },
  }),
);
must(acked.acked === 1 && acked.gone.length === 0, acked);

const missing = await client.GET("/v1/messages/{id}", { params: { path: { id: "f".repeat(32) } } });
must(missing.error?.type === "/problems/not-found", missing.error);
console.log("all done");
