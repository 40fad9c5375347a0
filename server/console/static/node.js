// This node: version, what its bounds leave, how long syncs take, how late messages were, who leads.

import { denied } from "./api.js";
import { facts, fill, h, table } from "./dom.js";
import { bytes, count, instant, span } from "./format.js";
import { Metrics } from "./metrics.js";

export async function open(root, { api, every }) {
  async function load() {
    const [info, text, ready] = await Promise.all([
      api.get("/v1/info"),
      api.get("/metrics").catch(denied),
      api.get("/readyz").then(() => "yes", (error) => error.message),
    ]);
    const metrics = text === null ? null : new Metrics(text);
    const cluster = metrics?.has("fasti_cluster_") ? await api.get("/v1/cluster").catch(denied) : null;
    fill(root, h("h1", {}, "Node"), h("div", { class: "columns" },
      h("section", {}, h("h2", {}, "Server"), facts([
        ["Version", info.version], ["Build", info.build], ["Node", info.node], ["Clock", info.clock], ["Its time", instant(info.now)],
        ["Ready", ready], ["MQTT", info.mqtt.map((one) => one.url).join(", ")],
        ["The API", h("a", { href: "/docs" }, "described")],
        ...(metrics ? memory(metrics) : []),
      ])),
      metrics ? [
        h("section", {}, h("h2", {}, "How late messages were"), histogram(metrics.histogram("fasti_lateness_seconds"), "messages")),
        h("section", {}, h("h2", {}, "From write to durable"), histogram(metrics.histogram("fasti_commit_seconds"), "group commits")),
        limits(metrics),
      ] : null,
      cluster ? h("section", {}, h("h2", {}, "Cluster"), members(cluster)) : null));
  }

  await load();
  every(5_000, load);
}

function histogram(buckets, what) {
  const total = buckets.reduce((sum, [, n]) => sum + n, 0);
  if (!total) return h("p", { class: "empty" }, `No ${what} so far.`);
  const last = buckets.findLastIndex(([, n]) => n > 0);
  return table([
    ["Up to", ([bound]) => (bound === Infinity ? "more" : bound < 0.001 ? `${bound * 1_000} ms` : span(bound * 1_000)), "nowrap"],
    ["How many", ([, n]) => count(n), "number"],
    ["Share", ([, n]) => h("meter", { min: "0", max: String(total), value: String(n), "aria-label": `${((100 * n) / total).toFixed(1)} %`, title: `${((100 * n) / total).toFixed(2)} %` })],
  ], buckets.slice(0, last + 1), what);
}

function limits(metrics) {
  const rows = metrics.limits();
  return rows.length ? h("section", {}, h("h2", {}, "Limits and their use"), table([
    ["Limit", (one) => h("code", {}, one.name), "text"],
    ["Used", (one) => count(one.used), "number"],
    ["Of", (one) => count(one.bound), "number"],
    ["Use", (one) => h("meter", { min: "0", max: String(one.bound), high: String(one.bound * 0.9), value: String(one.used), "aria-label": `${one.used} of ${one.bound}` })],
  ], rows, "Limits and their use")) : null;
}

function memory(metrics) {
  const value = (name, as) => { const found = metrics.value(name); return found === undefined ? null : as(found); };
  return [
    ["RAM", value("process_resident_memory_bytes", bytes)],
    ["Store", value("fasti_store_bytes", bytes)],
    ["Free disk", value("fasti_disk_free_bytes", bytes)],
    ["Open files", value("process_open_fds", count)],
  ];
}

function members(cluster) {
  return [facts([["Name", cluster.name], ["State", cluster.state], ["Epoch", cluster.epoch], ["Why", cluster.why || null]]), table([
    ["Node", (one) => one.node, "text"],
    ["State", (one) => h("span", { class: "tag" }, one.is_alive ? one.state : "silent")],
    ["Lag", (one) => `${count(one.lag)} records`, "number"],
    ["Heard", (one) => `${span(one.heard_ms)} ago`, "nowrap"],
    ["Version", (one) => one.version, "nowrap"],
  ], cluster.nodes, "Nodes")];
}
