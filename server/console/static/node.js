// This node: version, what its bounds leave, how long syncs take, how late messages were, who leads.

import { denied } from "./api.js";
import { facts, fill, h, table, tag } from "./dom.js";
import { away, both, bytes, count, percent, server, span } from "./format.js";
import { Metrics } from "./metrics.js";

const NEAR = 0.9;

export async function open(root, { api, every }) {
  const order = { sort: "Use", down: true };

  async function load() {
    const [info, text, ready] = await Promise.all([
      api.get("/v1/info"),
      api.get("/metrics").catch(denied),
      api.get("/readyz").then(() => null, (error) => error.message),
    ]);
    const told = text === null ? null : new Metrics(text), metrics = told?.isWhole ? told : null;
    const cluster = told?.has("fasti_cluster_") ? await api.get("/v1/cluster").catch(denied) : null;
    fill(root, h("h1", {}, "Node"), ready && h("p", { class: "bad" }, ready), h("div", { class: "columns" },
      h("section", {}, h("h2", {}, "Server"), facts([
        ["State", ready ? tag("not ready", "bad") : tag("ready", "good")],
        ["Version", `${info.version} (${info.build === "pure" ? "pure Python" : info.build})`],
        ["Time", `${both(info.now)}${info.clock === "system" ? "" : `, ${info.clock} clock`}`],
        ...(metrics ? since(metrics) : []),
        ["HTTP", info.url], ["MQTT", info.mqtt.map((one) => h("div", {}, one.url))],
        ["API", [h("a", { href: "/docs" }, "all calls"), ", ", h("a", { href: "/openapi.json" }, "openapi.json")]],
        ["Number in message ids", info.node],
        ...(metrics ? resources(metrics) : []),
      ])),
      cluster ? h("section", {}, h("h2", {}, "Cluster"), members(cluster)) : null,
      metrics ? [
        h("section", {}, h("h2", {}, "How late messages were"), histogram(metrics.histogram("fasti_lateness_seconds"), "Messages")),
        h("section", {}, h("h2", {}, "How long a write took to be safe on disk"), histogram(metrics.histogram("fasti_commit_seconds"), "Writes")),
      ] : null),
    metrics ? limits(metrics, order) : null);
  }

  await load();
  every(5_000, load);
}

function histogram(buckets, what) {
  const total = buckets.reduce((sum, [, n]) => sum + n, 0);
  if (!total) return h("p", { class: "empty" }, "None since the server started.");
  const last = buckets.findLastIndex(([, n]) => n > 0);
  return h("div", { class: "compact" }, table([
    ["Up to", ([bound]) => (bound === Infinity ? "more" : bound < 0.001 ? `${bound * 1_000} ms` : span(bound * 1_000)), "nowrap"],
    [what, ([, n]) => count(n), "number"],
    ["Share", ([, n]) => bar(n, total)],
  ], buckets.slice(0, last + 1), `${what} since the server started`));
}

function bar(value, most) {
  return h("div", { class: "fullness" }, h("span", {}, percent(value / most)),
    h("meter", { min: "0", max: String(most), high: String(most), value: String(value), "aria-label": `${value} of ${most}` }));
}

function limits(metrics, order) {
  const rows = metrics.limits().map((one) => ({ ...one, share: one.bound ? one.used / one.bound : null }));
  const as = (one) => (one.isBytes ? bytes : count);
  return rows.length ? h("section", { class: "compact" }, h("h2", {}, "Limits and their use"), table([
    ["Limit of", (one) => [`${one.title} `, h("code", { class: "faint" }, one.name)], "text", (one) => one.title],
    ["In use", (one) => as(one)(one.used), "number"],
    ["Limit", (one) => (one.bound ? as(one)(one.bound) : "no limit"), "number"],
    ["Use", (one) => (one.bound ? [bar(one.used, one.bound), one.share > NEAR && !one.isCache ? tag("nearly full", "warn") : null] : "–"), null, (one) => one.share ?? -1],
  ], rows, "Limits and their use", order)) : null;
}

const valued = (metrics, name, as) => { const found = metrics.value(name); return found === undefined ? null : as(found); };

const since = (metrics) => [["Started", valued(metrics, "process_start_time_seconds", (s) => `${both(Math.floor(s) * 1_000)}, ${away(s * 1_000, server.now())}`)]];

function resources(metrics) {
  return [
    ["Memory in use", valued(metrics, "process_resident_memory_bytes", bytes)],
    ["Store on disk", valued(metrics, "fasti_store_bytes", bytes)],
    ["Free disk", valued(metrics, "fasti_disk_free_bytes", bytes)],
    ["Open files", valued(metrics, "process_open_fds", (n) => `${count(n)}${metrics.value("process_max_fds") ? ` of ${count(metrics.value("process_max_fds"))}` : ""}`)],
  ];
}

function members(cluster) {
  return [facts([
    ["Name", cluster.name],
    ["This node", [cluster.node, " ", tag(cluster.state, cluster.state === "leader" ? "good" : null)]],
    ["Needs attention", cluster.why ? h("span", { class: "warn" }, cluster.why) : null],
    ["Leader", cluster.leader?.node ?? h("span", { class: "bad" }, "none")],
    ["Term (epoch)", cluster.epoch],
    ["Changes of leader", cluster.takeovers],
  ]), table([
    ["Node", (one) => one.node, "text"],
    ["State", (one) => (one.is_alive ? tag(one.state, "good") : tag("gone", "bad"))],
    ["Behind", (one) => `${count(one.lag)} records`, "number"],
    ["Last heard", (one) => `${span(one.heard_ms)} ago`, "nowrap"],
    ["Version", (one) => one.version, "nowrap"],
  ], cluster.nodes, "Nodes")];
}
