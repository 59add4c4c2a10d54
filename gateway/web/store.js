// What the page knows of the gateway. `watch.js` alone fills it; views read it when told.

const listeners = new Set();

/**
 * `status` is /v1/status, `cards` what /v1/models lists, `requests` those in progress.
 * `away` says, in words, why what is shown may be old.
 */
export const store = { status: null, cards: [], requests: [], away: "" };

export function onChange(listener) {
  listeners.add(listener);
}

export function changed() {
  for (const listener of listeners) listener(store);
}

/** The status of what is loaded for this name: a variant's is that of its base. */
export function modelOf(name) {
  const base = store.cards.find((card) => card.id === name)?.meta.variant_of || name;
  return store.status?.models.find((model) => model.name === base);
}

/** Takes over what an event, or the answer to an action, tells of one model. */
export function patch(name, fields) {
  const model = store.status?.models.find((each) => each.name === name);
  if (!model) return;
  Object.assign(model, fields);
  changed();
}
