// What happens, as it happens: the events of the models, and the log.

import { Feed, onKey } from "./api.js";
import { Keyed, append, at, bytes, clock, make, many, say, seconds } from "./dom.js";
import { onChange } from "./store.js";

const MOST = 1000;
const FIRST_LINES = 300;
const OMITTED = new Set(["at", "type", "model"]);

/** Takes an event of the gateway; those of progress are for the models' own bars. */
export function showEvent(event) {
  if (event.type === "load_progress") return;
  const { type, model } = event;
  at("events-none").hidden = true;
  const time = make("time", {}, clock(event.at));
  append(at("events"), make("li", {}, time, make("b", {}, model || "gateway"), told(type, event)), MOST);
}

const WORDS = {
  transition: ({ from, to, cause }) => `${from} → ${to}: ${cause}`,
  loaded: (event) => `loaded in ${seconds(event.seconds)}`,
  evicted: ({ reason }) => `leaves memory: ${reason}`,
  refused: ({ message }) => `refused a call: ${message}`,
  given_up: ({ reason }) => `will not be loaded: ${reason}`,
  calls_ended: ({ count, message }) => `${many(count, "call")} ended: ${message}`,
  limits: (event) => `its prompt cache may take ${bytes(event.prompt_cache_bytes)}`,
  pin: ({ pinned }) => (pinned ? "pinned" : "not pinned any more"),
  removed: () => "is gone from the registry",
  engine_exit: ({ pid, how, cause }) => `engine ${pid} ended, ${how}: ${cause}`,
  stranded: (event) => `${bytes(event.bytes)} of its memory have not come back`,
  memory: ({ pressure, overcommitted }) => `memory pressure ${pressure}${overcommitted ? `: ${overcommitted}` : ""}`,
  reload: ({ result, lines }) => `registry ${result}${lines.length ? `: ${lines.join("; ")}` : ""}`,
  missed: ({ count }) => `${many(count, "event")} were lost on the way`,
  draining: (event) => `no new requests; running ones have ${seconds(event.seconds)}`,
  end: () => "the gateway has ended",
};

/** An event that this page does not know is shown as it is. */
function told(type, event) {
  if (WORDS[type]) return ` ${WORDS[type](event)}`;
  const fields = Object.entries(event).filter(([key, value]) => !OMITTED.has(key) && value !== null);
  return ` ${type} ${fields.map(([key, value]) => `${key} ${JSON.stringify(value)}`).join(", ")}`;
}

export function tellEvents(words) {
  say(at("events-note"), words);
}

/** The log is followed only while it is looked at; returns what has to be told whether it is. */
export function showLogs() {
  const list = at("logs");
  let looked = false;
  const take = ({ at: moment, level, source, model, line, count }) => {
    if (line === undefined) {
      append(list, make("li", { "data-level": "WARNING" }, `${count} lines were lost`), MOST);
      return;
    }
    const time = make("time", {}, clock(moment));
    const where = make("b", {}, model || source);
    append(list, make("li", { "data-level": level }, time, where, ` ${line}`), MOST);
  };
  const path = () => {
    const model = at("logs-model").value;
    const query = new URLSearchParams({ follow: "1", lines: FIRST_LINES, level: at("logs-level").value });
    if (model) query.set("model", model);
    return `/admin/logs?${query}`;
  };
  // Every connection begins with the last lines again; until there is one the old lines stay.
  const begin = () => list.replaceChildren();
  const feed = new Feed(path, take, (words) => say(at("logs-note"), words), begin);
  const look = () => {
    if (looked && !document.hidden && at("logs-follow").checked) feed.start();
    else feed.stop();
  };
  const again = () => {
    feed.stop();
    look();
  };
  for (const id of ["logs-model", "logs-level"]) at(id).addEventListener("change", again);
  at("logs-follow").addEventListener("change", look);
  document.addEventListener("visibilitychange", look);
  onKey(again);
  fillModels();
  return (shown) => {
    looked = shown;
    look();
  };
}

function fillModels() {
  const create = ({ name }) => ({ element: make("option", { value: name }, name), update: () => {} });
  const all = { name: "" };
  const options = new Keyed(at("logs-model"), ({ name }) => name, create);
  options.shown.set("", { element: at("logs-model").firstElementChild, update: () => {} });
  onChange(({ status }) => status && options.show([all, ...status.models]));
}
