// The same work for job queues: node jobs.mjs MODULES QUEUE PORT SCENE SIZES. Prints what it found as JSON.
//
//     drain     `count` jobs become due in one instant. Four workers take 100 at a time until none is left,
//               and work for up to 2 ms on each. With `keys`, one in a hundred fails once
//     late      `count` jobs at random instants within `for_s`: how long after its due time a worker has each
//     others    what tenants feel of another one's dump and of a failing job, as in tests/bench/ordering.py
//
// `broken` counts the jobs that began before the one before them in their key had ended.

import { randomBytes } from "node:crypto"
import { Agent, request } from "node:http"
import { createRequire } from "node:module"
import { setTimeout as sleep } from "node:timers/promises"

const [modules, kind, port, scene, given] = process.argv.slice(2)
const load = createRequire(modules)
const sizes = JSON.parse(given)
const host = "127.0.0.1", BATCH = 1000, WORKERS = 4, EACH = 100, FAILING = 100, AGAIN_MS = 50
const POLL_MS = { drain: 10, late: 1, others: 20 }
const LEAD_MS = 1000  // and 1 ms for each job: until the instant at which they are due, all are to be added
const now = () => performance.timeOrigin + performance.now()

// -- the queues: `add` jobs; let `workers` work on `each` jobs at a time. A true of `handle`: done

const queues = {
  async fasti(name) {
    const agent = new Agent({ keepAlive: true })  // a quarter of what `fetch` costs
    const call = (path, body, method = "POST") => new Promise((resolve, reject) => {
      const headers = { "Content-Type": "application/json" }
      request({ host, port, agent, method, headers, path: `/v1/${path}` }, async answer => {
        const told = (await answer.toArray()).join("")
        if (answer.statusCode < 300) resolve(JSON.parse(told))
        else reject(new Error(told))
      }).on("error", reject).end(JSON.stringify(body))
    })
    await call(`groups/${name}`, { filter: name, order: sizes.keys > 0, max_attempts: 0 }, "PUT")
    const of = `groups/${name}/messages`
    return {
      add: jobs => call("messages:batch", jobs.map(job => ({
        topic: name,
        payload: job,
        ordering_key: job.key,
        deliver_at: job.due && new Date(job.due).toISOString(),
      }))),
      work: (workers, each, handle) => asked(workers, handle, {
        take: async () => (await call(`${of}:lease`, { max: each, wait: 1 })).messages.map(
          ({ lease_id: id, payload: data }) => ({ id, data })),
        done: ids => call(`${of}:ack`, { lease_ids: ids }),
        failed: ids => call(`${of}:nack`, { lease_ids: ids, delay: `${AGAIN_MS}ms` }),
      }),
    }
  },

  // Without keys: groups are part of BullMQ Pro.
  async BullMQ(name) {
    const { Queue, Worker } = load("bullmq")
    const connection = { host, port: +port, maxRetriesPerRequest: null }
    const queue = new Queue(name, { connection })
    const opts = { attempts: 99, backoff: { type: "fixed", delay: AGAIN_MS }, removeOnComplete: true }
    return {
      add: jobs => queue.addBulk(jobs.map(data => {
        const timestamp = Date.now()
        const delay = Math.max(0, (data.due ?? 0) - timestamp)
        return { name: "job", data, opts: { ...opts, timestamp, delay } }
      })),
      work(workers, each, handle) {
        const work = async ({ data }) => { if (!await handle(data)) throw new Error("again") }
        for (; workers; workers--) new Worker(name, work, { connection, concurrency: each })
      },
    }
  },

  // key_strict_fifo: of a key one at a time, through retries, in the order of creation. A retry comes at
  // once, or after whole seconds. Its own workers may poll each 500 ms: here loops around `fetch` do.
  async "pg-boss"(name) {
    const { PgBoss } = load("pg-boss")
    const boss = new PgBoss({ host, port: +port, user: "bench", database: "postgres", max: 24 })
    boss.on("error", error => { throw error })
    await boss.start()
    await boss.createQueue(name, { policy: sizes.keys > 0 ? "key_strict_fifo" : "standard", retryLimit: 99 })
    return {
      add: jobs => boss.insert(name, jobs.map(data => ({
        data, singletonKey: data.key, startAfter: data.due && new Date(data.due),
      }))),
      work: (workers, each, handle) => asked(workers, handle, {
        async take() {
          const jobs = await boss.fetch(name, { batchSize: each })
          if (!jobs.length) await sleep(POLL_MS[scene])
          return jobs
        },
        done: ids => boss.complete(name, ids),
        failed: ids => boss.fail(name, ids),
      }),
    }
  },
}

function asked(workers, handle, { take, done, failed }) {
  const work = async () => {
    for (;;) {
      const jobs = await take(), ended = [[], []]
      await Promise.all(jobs.map(async ({ id, data }) => ended[+await handle(data)].push(id)))
      if (ended[1].length) await done(ended[1])
      if (ended[0].length) await failed(ended[0])
    }
  }
  for (; workers; workers--) work()
}

// -- the scenes

const text = () => randomBytes(150).toString("base64")
const percentile = (values, share) => values.sort((a, b) => a - b)[Math.floor(share * values.length)]

async function addAll(queue, jobs) {
  for (let at = 0; at < jobs.length; at += BATCH) await queue.add(jobs.slice(at, at + BATCH))
}

const scenes = {
  async drain(queue) {
    const { count, keys } = sizes, turns = new Map()
    const started = now(), due = Math.round(started + LEAD_MS + count)
    await addAll(queue, Array.from({ length: count }, (_, n) => (
      { n, due, text: text(), key: keys ? `k${n % keys}` : undefined })))
    const added_per_s = count / (now() - started) * 1000
    if (now() > due) throw new Error("adding took until due")
    const failing = new Set(keys ? Array.from({ length: count / FAILING }, (_, n) => n * FAILING) : [])
    let left = count, broken = 0
    queue.work(WORKERS, EACH, async ({ n }) => {
      const key = n % keys, turn = Math.floor(n / keys)
      broken += keys > 0 && turn !== (turns.get(key) ?? 0)
      await sleep(Math.random() * 2)
      if (failing.delete(n)) return false
      turns.set(key, turn + 1)
      left--
      return true
    })
    await sleep(due - now())
    while (left) await sleep(1)
    return { per_s: count / (now() - due) * 1000, added_per_s, broken }
  },

  async late(queue) {
    const start = now() + LEAD_MS + sizes.count, waits = []
    await addAll(queue, Array.from({ length: sizes.count }, () => (
      { due: Math.round(start + Math.random() * sizes.for_s * 1000), text: text() })))
    queue.work(WORKERS, EACH, async ({ due }) => { waits.push(now() - due); return true })
    while (waits.length < sizes.count) await sleep(10)
    const early = waits.filter(ms => ms < 0).length
    return { early, p50_ms: percentile(waits, 0.5), p99_ms: percentile(waits, 0.99) }
  },

  async others(queue) {
    const { count, tenants, per_s, every_s, workers, work_s, retries, for_s } = sizes
    let late = [], left = 0, fails = 0, number = 0
    queue.work(WORKERS, workers / WORKERS, async ({ what, sent }) => {
      const waited = now() - sent
      await sleep(work_s * 1000)
      if (what === "poison") return ++fails > retries
      if (what === "tenant") late.push(waited), left--
      return true
    })
    const p99 = async isOver => {
      late = []
      for (const end = now() + for_s * 1000; now() < end || !isOver();) {
        const sent = now()
        const jobs = Array.from({ length: per_s * every_s }, () => (
          { what: "tenant", key: `t${number++ % tenants}`, sent }))
        left += jobs.length
        await queue.add(jobs)
        await sleep(sent + every_s * 1000 - now())
      }
      while (left) await sleep(10)
      return percentile(late, 0.99)
    }
    const alone = await p99(() => true)
    let isDumped = false
    addAll(queue, Array.from({ length: count }, () => ({ what: "dump", key: "heavy", text: text() })))
      .then(() => { isDumped = true })
    const accepted = await p99(() => isDumped), waits = await p99(() => true)
    await queue.add([{ what: "poison", key: "poison" }])
    const failing = await p99(() => fails > retries)
    return {
      alone, "while a dump is accepted": accepted, "while it waits": waits, "beside a failing job": failing,
    }
  },
}

const found = await scenes[scene](await queues[kind](`${scene}-${Date.now()}`))
const { user, system } = process.cpuUsage()
console.log(JSON.stringify({ ...found, load_s: (user + system) / 1e6 }))
process.exit()
