// One client of a lock, behind a pipe: a line of JSON in, a line of JSON out.
//   {"peer": "redlock", "urls": [...], "key": "name"}   opens the lock      -> {"held": false}
//   {"acquire": 5000}                                    one attempt, for ms -> {"held": true}
//   {"release": true}                                                        -> {"held": false}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import Redis from "ioredis";

const require = createRequire(import.meta.url);

const peers = {
  redlock(clients, key) {
    const Redlock = require("redlock");
    const locks = new Redlock(clients, { retryCount: 0 });
    return {
      acquire: (ttl) => locks.lock(key, ttl),
      release: (lock) => lock.unlock(),
    };
  },
  "redlock-universal"(clients, key) {
    const { createRedlock, IoredisAdapter } = require("redlock-universal");
    const adapters = clients.map((client) => new IoredisAdapter(client));
    let lock;
    return {
      acquire(ttl) {
        lock = createRedlock({ adapters, key, ttl, retryAttempts: 0 });
        return lock.acquire();
      },
      release: (handle) => lock.release(handle),
    };
  },
};

let client;
let held;

async function answer({ peer, urls, key, acquire, release }) {
  if (peer) {
    client = peers[peer](urls.map((url) => new Redis(url)), key);
  } else if (acquire) {
    try {
      held = await client.acquire(acquire);
    } catch (error) {
      return { held: false, error: `${error.name}: ${error.message}` };
    }
  } else if (release) {
    await client.release(held);
    held = undefined;
  }
  return { held: held !== undefined };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
process.exit(0);
