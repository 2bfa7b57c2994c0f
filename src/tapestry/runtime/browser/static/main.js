// The agent page: shows the adapter, keeps a connection on offer, keeps the screen on while it is used.

import { Connections } from "./connection.js";
import { textOf } from "./errors.js";
import { ModuleStore } from "./store.js";
import { View, sized } from "./view.js";
import { FEATURES, LIMITS, describe, findAdapter } from "./webgpu/adapter.js";
import { openDevice } from "./webgpu/device.js";

const KEY = "tapestry-token";

/** The token is in the address's fragment once, which is not sent anywhere, and kept for reloads of this tab. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) ?? "";
}

async function showAdapter(view) {
  try {
    const adapter = await findAdapter();
    const rows = LIMITS.map((key) => [spelled(key), shown(key, adapter.limits[key])]);
    const features = Object.keys(FEATURES).filter((feature) => adapter.features.has(feature));
    view.adapter(describe(adapter), [["features used", features.join(", ") || "none"], ...rows]);
  } catch (error) {
    view.adapter("none", []);
    view.unusable(textOf(error));
  }
}

function shown(key, limit) {
  return key.endsWith("Size") ? sized(limit) : limit.toLocaleString();
}

/** "maxBufferSize" → "max buffer size" */
function spelled(key) {
  return key.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

/** A phone that turns its screen off stops the page. */
class Wakefulness {
  #lock = null;

  async keep(wanted) {
    if (!("wakeLock" in navigator)) return;
    if (!wanted) {
      await this.#lock?.release();
      this.#lock = null;
    } else if (this.#lock === null || this.#lock.released) {
      this.#lock = await navigator.wakeLock.request("screen").catch(() => null); // refused while the tab is hidden
    }
  }
}

const view = new View(document);
const wakefulness = new Wakefulness();
const observer = {
  connection(state, sessions) {
    view.connection(state, sessions);
    wakefulness.keep(sessions > 0);
  },
  command: (op) => view.command(op),
  done: () => view.done(),
  error: (text) => view.error(text),
};
await showAdapter(view);
new Connections({
  token: takeToken(),
  openDevice: (name) => openDevice(name, view),
  store: new ModuleStore(),
  view: observer,
}).offer();
