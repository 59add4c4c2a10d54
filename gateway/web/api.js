// Talking to the gateway: the key, refusals in words, and event streams.

import { at, note } from "./dom.js";

const KEPT = "mlx-gateway-key";
const RETRY_FIRST_MS = 500;
const RETRY_MOST_MS = 5000;

/** The gateway said no, and why. */
export class Refused extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Nobody answered. */
export class Away extends Error {}

const keyed = new Set();

/** `listener` hears of every key that is given. */
export function onKey(listener) {
  keyed.add(listener);
}

/** Asks the gateway; `json` or `form` is the body. Throws `Refused` and `Away`. */
export async function ask(path, { method = "GET", json, form, signal } = {}) {
  const key = sessionStorage.getItem(KEPT);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (json !== undefined) headers["content-type"] = "application/json";
  const body = json === undefined ? form : JSON.stringify(json);
  let response;
  try {
    response = await fetch(path, { method, headers, body, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("the gateway does not answer");
  }
  if (response.ok) return response;
  const refused = await refusal(response);
  if (response.status === 401) askForKey(key ? "This key is not known here." : "This gateway asks for a key.");
  throw refused;
}

/** What the gateway answers, as JSON. */
export async function read(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("the gateway went away while it answered");
  }
}

async function refusal(response) {
  let said = {};
  try {
    said = (await response.json()).error || {};
  } catch {
    // a proxy on the way answers with something else than JSON: the status has to do
  }
  const again = response.headers.get("retry-after");
  const words = said.message || `the answer was ${response.status}`;
  return new Refused(again ? `${words} (again in ${again} s)` : words, response.status, said.code);
}

/** Each `data:` of an event stream; it ends with the stream. Throws `Away`. */
export async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split(/\r?\n\r?\n/);
      rest = pieces.pop();
      for (const piece of pieces) {
        const lines = piece.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("the connection was lost");
  } finally {
    reader.cancel().catch(() => {}); // of a stream that has failed, which was told above
  }
}

/** How long to wait before the next try after so many failed ones, in ms. */
export const pause = (failures) =>
  Math.min(RETRY_MOST_MS, RETRY_FIRST_MS * 2 ** Math.max(0, failures - 1));

/**
 * Reads an event stream of the gateway for as long as it is wanted, over lost connections.
 * `path()` says what to read, `take` gets each event, `tell` how it stands, in words; `begin` hears
 * of each new connection.
 */
export class Feed {
  constructor(path, take, tell, begin = () => {}) {
    this.path = path;
    this.take = take;
    this.tell = tell;
    this.begin = begin;
    this.abort = null;
  }

  start() {
    if (this.abort) return;
    this.abort = new AbortController();
    this.run(this.abort.signal);
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
  }

  async run(signal) {
    for (let failures = 1; !signal.aborted; failures += 1) {
      try {
        const response = await ask(this.path(), { signal });
        this.tell("");
        this.begin();
        for await (const frame of frames(response)) {
          failures = 0;
          this.take(JSON.parse(frame));
        }
        this.tell("the stream has ended; trying again");
      } catch (error) {
        if (signal.aborted) return;
        this.tell(error.message);
        if (error.status === 401 || error.status === 403) return; // until there is another key
      }
      await new Promise((done) => setTimeout(done, pause(failures)));
    }
  }
}

// --- the key -------------------------------------------------------------------------------------

/** Opens the dialog; while it is open nothing more is asked. */
export function askForKey(why) {
  const dialog = at("key-dialog");
  if (dialog.open) return;
  note(at("key-why"), why);
  at("key-input").value = "";
  dialog.showModal();
}

export function prepareKey() {
  at("key-button").addEventListener("click", () => askForKey(""));
  at("key-cancel").addEventListener("click", () => at("key-dialog").close());
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = at("key-input").value.trim();
    at("key-input").value = "";
    if (key) sessionStorage.setItem(KEPT, key);
    else sessionStorage.removeItem(KEPT);
    at("key-dialog").close();
    for (const listener of keyed) listener();
  });
}
