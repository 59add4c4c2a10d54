// What the parts of the playground share: the choice of a model, and a form that is at work.

import { Keyed, at, make, say, tell } from "./dom.js";
import { modelOf, onChange, store } from "./store.js";

/** Fills `NAME-model` with the models of these kinds; an entry without a kind is of kind text. */
export function offerModels(name, kinds, chosen = () => {}) {
  const select = at(`${name}-model`);
  const none = make("option", { value: "", disabled: true }, "no such model is served");
  const create = ({ id }) => {
    const element = make("option", { value: id });
    return { element, update: () => say(element, labelOf(id)) };
  };
  const options = new Keyed(select, ({ id }) => id, create);
  let last = null;
  const look = () => {
    const card = store.cards.find(({ id }) => id === select.value);
    if (card?.id !== last) chosen(card);
    last = card?.id;
  };
  onChange(({ cards }) => {
    const offered = cards.filter(({ meta }) => kinds.includes(meta.kind || "text"));
    none.remove();
    options.show(offered);
    if (!offered.length) select.append(none);
    look();
  });
  select.addEventListener("change", look);
  return select;
}

function labelOf(id) {
  const model = modelOf(id);
  return model && model.state !== "ready" ? `${id} (${model.state})` : id;
}

/** While a request waits for its model, in words; nothing once the model is there. */
export function waitingFor(name) {
  const model = modelOf(name);
  if (!model || model.state === "ready") return "Waiting for the first word.";
  const total = model.load_total;
  const done = total ? `, ${Math.round((100 * model.load_done) / total)} %` : "";
  return model.state === "loading" ? `${name} is loading${done}.` : `Waiting for room for ${name}.`;
}

/**
 * Has a form run `work(signal, said)`, one at a time: what is sent again ends what is running.
 * How it went is told in `NAME-said`: `work` returns the words, or throws.
 */
export function runs(name, work) {
  const form = at(`${name}-form`);
  const said = at(`${name}-said`);
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = new AbortController();
    running = mine;
    form.setAttribute("aria-busy", "true");
    tell(said, waitingFor(at(`${name}-model`).value).replace("the first word", "the answer"));
    try {
      const words = await work(mine.signal, said);
      if (running === mine) tell(said, words);
    } catch (error) {
      if (running === mine) tell(said, error.message, "bad");
    } finally {
      if (running === mine) form.removeAttribute("aria-busy");
    }
  });
}
