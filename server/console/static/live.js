// What moves: the server's events, for whoever on the page wants them. One stream a tab, none while it is hidden.

import { server } from "./format.js";

/** How long it waits for another try; twice as long each time: a wrong key must not be shown over and over. */
const RETRY_MS = 2_000, RETRY_MS_MAX = 60_000;

/** The server says something each second; after so long without it the connection leads nowhere. */
const SILENT_MS = 10_000;

export class Live {
  constructor(api) {
    this.api = api;
    this.listeners = new Set();
    this.last = null;
    this.stream = null;
    /** When it is known how the server stands, or that it is not. */
    this.first = new Promise((heard) => { this.heard = heard; });
    document.addEventListener("visibilitychange", () => this.follow());
    this.follow();
  }

  /** `listener(figures)` at each event, null when there are none any more. Gives what ends that. */
  on(listener) {
    this.listeners.add(listener);
    listener(this.last);
    return () => this.listeners.delete(listener);
  }

  follow() {
    if (document.hidden) {
      this.stream?.abort();
      this.stream = null;
    } else if (!this.stream) {
      this.stream = new AbortController();
      this.run(this.stream);
    }
  }

  async run(stream) {
    let wait = RETRY_MS;
    while (!stream.signal.aborted) {
      const silence = new AbortController();
      let timer = setTimeout(() => silence.abort(), SILENT_MS);
      try {
        const response = await this.api.fetch("GET", "/v1/events", { signal: AbortSignal.any([stream.signal, silence.signal]), asks: false });
        wait = RETRY_MS;
        for await (const [event, data] of events(response.body)) {
          clearTimeout(timer);
          timer = setTimeout(() => silence.abort(), SILENT_MS);
          if (event === "figures") this.tell(JSON.parse(data));
        }
      } catch (error) {
        if (stream.signal.aborted) return;
      } finally {
        clearTimeout(timer);
      }
      this.tell(null);
      await new Promise((done) => { setTimeout(done, wait); this.api.onKey = done; });
      wait = Math.min(2 * wait, RETRY_MS_MAX);
    }
  }

  tell(figures) {
    this.last = figures;
    if (figures) server.hear(figures.time);
    this.heard();
    for (const listener of this.listeners) listener(figures);
  }
}

/** The events of a text/event-stream: [name, data]. Source: HTML Living Standard, 9.2.6. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const blocks = held.split(/\r?\n\r?\n/);
    held = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/);
      const of = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart());
      const data = of("data").join("\n");
      if (data) yield [of("event")[0] ?? "message", data];
    }
  }
}
