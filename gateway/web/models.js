// The models, each with its state and what can be done with it, and the requests in progress.

import { Keyed, at, bytes, make, many, note, say, seconds } from "./dom.js";
import { partsInWords } from "./memory.js";
import { onChange, store } from "./store.js";
import { act, cancel } from "./watch.js";

const TONES = {
  ready: "good",
  loading: "wait",
  draining: "wait",
  unloading: "wait",
  failed: "bad",
  unavailable: "bad",
};
const IN_MEMORY = new Set(["ready", "loading", "draining"]);

class Card {
  constructor({ name }) {
    this.model = null;
    this.seen = null;
    this.title = make("h4", {}, name);
    this.state = make("span", { class: "pill" });
    this.facts = make("p", { class: "quiet" });
    this.about = make("p");
    this.progress = make("progress", { "aria-label": `Load of ${name}`, hidden: true });
    this.memory = make("p", { class: "quiet" });
    this.calls = make("p", { class: "quiet" });
    this.why = make("p", { class: "error", hidden: true });
    this.failed = make("p", { class: "error", role: "alert", hidden: true });
    this.load = make("button", { type: "button", onclick: () => this.toggleLoad() });
    this.pin = make("button", { type: "button", onclick: () => this.togglePin() });
    const head = make("div", { class: "row" }, this.title, make("span", { class: "push" }), this.state);
    const foot = make("div", { class: "row" }, this.load, this.pin);
    const lines = [this.facts, this.about, this.progress, this.memory, this.calls];
    this.element = make("li", { class: "panel card" }, head, ...lines, this.why, this.failed, foot);
  }

  update(model) {
    this.announce(model);
    this.model = model;
    const { name, state } = model;
    say(this.state, state);
    this.state.dataset.tone = TONES[state] || "";
    say(this.facts, facts(model));
    note(this.about, model.entry.description);
    this.showProgress(model);
    note(this.memory, model.charge_bytes ? `${bytes(model.charge_bytes)}: ${partsInWords(model)}` : "");
    note(this.calls, calls(model));
    const told = model.reason && this.failed.textContent.startsWith(model.reason);
    note(this.why, state === "ready" || told ? "" : model.reason);
    this.name(this.load, IN_MEMORY.has(state) ? "Unload" : "Load", name);
    this.name(this.pin, model.pinned ? "Unpin" : "Pin", name);
  }

  name(button, verb, model) {
    say(button, verb);
    button.setAttribute("aria-label", `${verb} ${model}`);
  }

  showProgress({ state, load_done: done, load_total: total }) {
    this.progress.hidden = state !== "loading";
    if (total) {
      this.progress.max = total;
      this.progress.value = done;
    } else {
      this.progress.removeAttribute("value");
    }
  }

  announce({ name, state }) {
    if (this.seen && this.seen !== state) say(at("model-said"), `${name} is ${state}.`);
    this.seen = state;
  }

  toggleLoad() {
    this.act("POST", IN_MEMORY.has(this.model.state) ? "unload" : "load");
  }

  async togglePin() {
    const { pinned } = this.model;
    await this.act(pinned ? "DELETE" : "PUT", "pin");
    if (pinned && this.model.pinned && this.failed.hidden) {
      note(this.failed, "The registry pins it: only there it can be unpinned.");
    }
  }

  async act(method, action) {
    note(this.failed, "");
    this.element.setAttribute("aria-busy", "true");
    try {
      await act(this.model.name, method, action);
    } catch (error) {
      note(this.failed, error.message);
    } finally {
      this.element.removeAttribute("aria-busy");
    }
  }
}

function facts(model) {
  const card = store.cards.find((each) => each.id === model.name);
  const words = [model.kind || "text"];
  if (card?.context_length) words.push(`${card.context_length.toLocaleString("en")} tokens`);
  if (card?.aliases?.length) words.push(`also ${card.aliases.join(", ")}`);
  if (model.pinned) words.push(model.pinned_until ? `pinned for ${left(model.pinned_until)}` : "pinned");
  if (model.ttl_left_s !== null) words.push(`unloads in ${seconds(model.ttl_left_s)}`);
  return words.join(" · ");
}

const left = (moment) => seconds(Math.max(0, moment - Date.now() / 1000));

function calls(model) {
  const words = [];
  if (model.leases) words.push(`${model.leases} running`);
  if (model.waiting) words.push(`${model.waiting} waiting`);
  if (model.loads) words.push(many(model.loads, "load"));
  if (model.evictions) words.push(many(model.evictions, "eviction"));
  if (model.load_s) words.push(`the last load took ${seconds(model.load_s)}`);
  return words.join(" · ");
}

class Line {
  constructor({ id }) {
    this.what = make("b");
    this.since = make("span", { class: "quiet" });
    this.failed = make("span", { class: "error", role: "alert", hidden: true });
    this.stop = make(
      "button",
      { type: "button", class: "plain", "aria-label": `Cancel ${id}`, onclick: () => this.cancel(id) },
      "Cancel",
    );
    const push = make("span", { class: "push" });
    this.element = make("li", { class: "row" }, this.what, this.since, this.failed, push, this.stop);
  }

  update({ id, model, route, key, since, ttft_s: ttft }) {
    say(this.what, model);
    const age = seconds(Math.max(0, Date.now() / 1000 - since));
    const first = ttft === null ? "no token yet" : `first token after ${seconds(ttft)}`;
    say(this.since, [route, key, `for ${age}`, first, id].filter(Boolean).join(" · "));
  }

  async cancel(id) {
    try {
      await cancel(id);
      note(this.failed, "cancelled");
    } catch (error) {
      note(this.failed, error.message);
    }
  }
}

export function showModels() {
  const cards = new Keyed(at("models"), (model) => model.name, (model) => new Card(model));
  const lines = new Keyed(at("requests"), (request) => request.id, (request) => new Line(request));
  onChange(({ status, requests }) => {
    if (!status) return;
    cards.show(status.models);
    lines.show(requests);
    at("requests-note").hidden = requests.length > 0;
    const ready = status.models.filter((model) => model.state === "ready").length;
    const waiting = status.waiting ? ` · ${many(status.waiting, "request")} waiting` : "";
    say(at("models-sum"), `${ready} of ${status.models.length} ready${waiting}`);
  });
}
