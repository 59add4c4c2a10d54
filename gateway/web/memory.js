// The memory bar: the budget, what each model takes of it and for what, and what is left.

import { Keyed, at, bytes, make, note, say } from "./dom.js";
import { onChange } from "./store.js";

const COLOURS = 8;
const CLASSES = [
  ["weights", "weights"],
  ["kv", "context"],
  ["prompt_cache", "prompt cache"],
  ["mlx_cache", "MLX cache"],
  ["unattributed", "other"],
];

/** What a model takes, by class, with what is kept for it beyond that: [class, words, bytes]. */
export function parts(model) {
  const measured = CLASSES.map(([key, words]) => [key, words, model.measured[key] || 0]);
  const known = measured.reduce((sum, [, , size]) => sum + size, 0);
  const kept = ["reserved", "kept for it", Math.max(0, model.charge_bytes - known)];
  return [...measured, kept].filter(([, , size]) => size > 0);
}

/** The same in words. */
export const partsInWords = (model) =>
  parts(model).map(([, words, size]) => `${words} ${bytes(size)}`).join(" · ");

class Block {
  constructor() {
    this.element = make("div", { class: "block" });
    this.inside = new Keyed(this.element, ([key]) => key, ([key]) => {
      const element = make("span", { "data-class": key });
      return { element, update: ([, , size]) => (element.style.flexGrow = size) };
    });
  }

  update({ model, colour, scale }) {
    this.element.dataset.colour = colour;
    this.element.title = `${model.name}: ${bytes(model.charge_bytes)} (${partsInWords(model)})`;
    this.element.style.width = `${(100 * model.charge_bytes) / scale}%`;
    this.inside.show(parts(model));
  }
}

class Entry {
  constructor() {
    this.swatch = make("i", { "aria-hidden": "true" });
    this.name = make("b");
    this.size = make("span", { class: "quiet" });
    this.element = make("li", {}, this.swatch, this.name, this.size);
  }

  update({ model, colour }) {
    this.swatch.dataset.colour = colour;
    say(this.name, model.name);
    say(this.size, `${bytes(model.charge_bytes)}: ${partsInWords(model)}`);
  }
}

export function showMemory() {
  const bar = at("memory-bar");
  const stranded = make("div", { class: "stranded" });
  const blocks = new Keyed(bar, ({ model }) => model.name, () => new Block());
  const legend = new Keyed(at("memory-legend"), ({ model }) => model.name, () => new Entry());
  onChange(({ status }) => {
    if (!status) return;
    const memory = status.memory;
    const scale = Math.max(memory.budget_bytes, memory.committed_bytes + memory.stranded_bytes, 1);
    const shown = status.models
      .map((model, index) => ({ model, colour: index % COLOURS, scale }))
      .filter(({ model }) => model.charge_bytes > 0);
    stranded.remove();
    blocks.show(shown);
    stranded.style.width = `${(100 * memory.stranded_bytes) / scale}%`;
    stranded.title = `stranded: ${bytes(memory.stranded_bytes)}`;
    if (memory.stranded_bytes) bar.append(stranded);
    legend.show(shown);
    say(at("memory-sum"), inWords(status));
    note(at("memory-note"), memory.overcommitted || "");
  });
}

function inWords({ memory, pressure }) {
  const words = [
    `${bytes(memory.committed_bytes)} of ${bytes(memory.budget_bytes)} committed`,
    `${bytes(memory.available_bytes)} free`,
  ];
  if (memory.stranded_bytes) words.push(`${bytes(memory.stranded_bytes)} stranded`);
  if (pressure !== "normal") words.push(`pressure ${pressure}`);
  return words.join(" · ");
}
