// The Node.js packages, behind a pipe: a line of JSON in, a line of JSON out.
//   {"peer": "redlock", "urls": [...]}   opens the lock      -> {"version": "4.2.0"}
//   {"calls": 20}                        acquire + release   -> {"walls": [seconds...], "cpu": seconds}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import Redis from "ioredis";

const require = createRequire(import.meta.url);
const KEY = `bench-${process.pid}`;
const TTL_MS = 5000;

const peers = {
  redlock(clients) {
    const Redlock = require("redlock");
    const locks = new Redlock(clients);
    return async () => {
      const lock = await locks.lock(KEY, TTL_MS);
      await lock.unlock();
    };
  },
  "redlock-universal"(clients) {
    const { createRedlock, IoredisAdapter } = require("redlock-universal");
    const adapters = clients.map((client) => new IoredisAdapter(client));
    const lock = createRedlock({ adapters, key: KEY, ttl: TTL_MS });
    return async () => {
      const handle = await lock.acquire();
      await lock.release(handle);
    };
  },
};

let acquireAndRelease;

async function answer({ peer, urls, calls }) {
  if (peer) {
    acquireAndRelease = peers[peer](urls.map((url) => new Redis(url)));
    await acquireAndRelease();
    return { ok: true };
  }
  const walls = [];
  const before = process.cpuUsage();
  for (let call = 0; call < calls; call++) {
    const began = process.hrtime.bigint();
    await acquireAndRelease();
    walls.push(Number(process.hrtime.bigint() - began) / 1e9);
  }
  const { user, system } = process.cpuUsage(before);
  return { walls, cpu: (user + system) / 1e6 };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
process.exit(0);
