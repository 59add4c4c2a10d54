// Making and updating elements. Text only ever becomes text: nothing here parses HTML.

/** The element with this id. */
export const at = (id) => document.getElementById(id);

/** A new element: its properties (`class`, `data-...`, `aria-...`, `on...` or any other), and what is in it. */
export function make(tag, given = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...inside.filter((each) => each !== null && each !== undefined));
  return element;
}

/** Sets text where it differs, so that nothing is read out, or unselected, for nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The same, hidden while there is nothing to say. */
export function note(element, text) {
  say(element, text || "");
  element.hidden = !text;
}

/** A status line; `tone` is `bad` for what went wrong. */
export function tell(element, text, tone = "") {
  say(element, text);
  element.dataset.tone = tone;
}

/**
 * Has the children of a list follow `items`: `create` makes what an item is shown by, an object
 * with an `element` and an `update`, which is kept for as long as the item's key is there.
 */
export class Keyed {
  constructor(list, keyOf, create) {
    this.list = list;
    this.keyOf = keyOf;
    this.create = create;
    this.shown = new Map();
  }

  show(items) {
    const wanted = new Set(items.map(this.keyOf));
    for (const [key, view] of this.shown) {
      if (wanted.has(key)) continue;
      view.element.remove();
      this.shown.delete(key);
    }
    let before = this.list.firstElementChild;
    for (const item of items) {
      const key = this.keyOf(item);
      let view = this.shown.get(key);
      if (!view) {
        view = this.create(item);
        this.shown.set(key, view);
      }
      view.update(item);
      if (view.element === before) before = before.nextElementSibling;
      else this.list.insertBefore(view.element, before);
    }
  }
}

/** Adds a line to a list of at most `most`, and follows it while the reader is at its end. */
export function append(list, element, most) {
  const following = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  list.append(element);
  while (list.childElementCount > most) list.firstElementChild.remove();
  if (following) list.scrollTop = list.scrollHeight;
}

// --- words ---------------------------------------------------------------------------------------

const UNITS = ["B", "KB", "MB", "GB", "TB"];

/** Bytes in words, a GB being 2**30 of them as in the registry. */
export function bytes(count) {
  let value = count || 0;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function seconds(count) {
  if (count < 10) return `${count.toFixed(1)} s`;
  if (count < 120) return `${Math.round(count)} s`;
  if (count < 7200) return `${Math.round(count / 60)} min`;
  return count < 172800 ? `${Math.round(count / 3600)} h` : `${Math.round(count / 86400)} d`;
}

/** The time of day of a moment in seconds since 1970. */
export function clock(moment) {
  return new Date(moment * 1000).toLocaleTimeString([], { hour12: false });
}

export const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
