// Keeps the store up to date: asks every two seconds while somebody looks, and follows events.

import { Away, Feed, ask, onKey, pause, read } from "./api.js";
import { seconds } from "./dom.js";
import { changed, patch, store } from "./store.js";

const EVERY_MS = 2000;
const STATE_KEYS = ["state", "reason", "leases", "waiting", "load_done", "load_total", "pinned"];

let timer = 0;
let asking = false;
let failures = 0;
let locked = false;
let cardsOld = true;
let listen = () => {};

/** `hear` gets every event, and `tell` how their stream stands. */
export function watch(hear, tell) {
  listen = hear;
  const feed = new Feed(() => "/admin/events", take, tell);
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) {
      feed.stop(); // a browser has few connections to one server, for all its tabs
    } else {
      feed.start();
      poll();
    }
  };
  document.addEventListener("visibilitychange", look);
  addEventListener("online", look);
  onKey(() => {
    locked = false;
    cardsOld = true;
    feed.stop();
    look();
  });
  look();
}

async function poll() {
  if (asking || locked) return;
  asking = true;
  try {
    await refresh();
    failures = 0;
    store.away = store.status.draining ? "The gateway is shutting down: it takes no new requests." : "";
  } catch (error) {
    failed(error);
  } finally {
    asking = false;
  }
  changed();
  clearTimeout(timer);
  if (!document.hidden && !locked) timer = setTimeout(poll, failures ? pause(failures) : EVERY_MS);
}

async function refresh() {
  const status = await read("/v1/status");
  const names = (each) => each?.models.map((model) => model.name).join("\n");
  if (names(status) !== names(store.status)) cardsOld = true;
  store.status = status;
  store.requests = (await read("/v1/requests")).data;
  if (cardsOld) {
    store.cards = (await read("/v1/models")).data;
    cardsOld = false;
  }
}

function failed(error) {
  cardsOld = true;
  if (error.status === 401) {
    locked = true; // until there is a key
    store.away = "This gateway asks for a key.";
    return;
  }
  failures += 1;
  const again = `Trying again in ${seconds(pause(failures) / 1000)}.`;
  store.away =
    error instanceof Away
      ? `The gateway does not answer: it may be starting again. ${again}`
      : `${error.message}. ${again}`;
}

function take(event) {
  switch (event.type) {
    case "snapshot":
      for (const state of event.models) {
        patch(state.model, Object.fromEntries(STATE_KEYS.map((key) => [key, state[key]])));
      }
      return;
    case "transition":
      patch(event.model, { state: event.to, load_done: 0, load_total: 0 });
      break;
    case "load_progress":
      patch(event.model, { load_done: event.done_bytes, load_total: event.total_bytes });
      break;
    case "pin":
      patch(event.model, { pinned: event.pinned, pinned_until: event.until });
      break;
    case "reload":
      cardsOld = true;
      break;
    case "draining":
      store.away = "The gateway is shutting down: it takes no new requests.";
      changed();
      break;
  }
  listen(event);
}

/** Load, unload, pin or unpin; throws what `ask` does. */
export async function act(name, method, action) {
  const path = `/v1/models/${encodeURIComponent(name)}/${action}`;
  const state = await read(path, { method });
  const { id: _id, model: _model, events: _events, ...fields } = state;
  patch(name, fields);
}

export function cancel(id) {
  return ask(`/v1/requests/${encodeURIComponent(id)}/cancel`, { method: "POST" });
}
