// The chat: a conversation with one model, streamed; it lives in this page and nowhere else.

import { ask, frames } from "./api.js";
import { at, make, seconds, tell } from "./dom.js";
import { Images } from "./images.js";
import { offerModels, waitingFor } from "./playground.js";
import { onChange } from "./store.js";

/** What there is to say of how an answer ended; of most there is nothing. */
const ENDS = { length: "cut at its length", content_filter: "filtered" };

/** A message of the reader's. */
class Question {
  constructor(text, urls) {
    const images = urls.map((url) => ({ type: "image_url", image_url: { url } }));
    this.content = images.length ? [...images, { type: "text", text }] : text;
    const pictures = urls.map((url, index) => make("img", { src: url, alt: `image ${index + 1}` }));
    const who = make("b", { class: "who" }, "You");
    this.element = make("li", { class: "user" }, who, ...pictures, make("div", { class: "text" }, text));
  }

  told() {
    return [{ role: "user", content: this.content }];
  }
}

/** A message of the model's, shown while it comes. */
class Turn {
  constructor() {
    this.thought = make("pre");
    this.summary = make("summary", {}, "Thinking …");
    this.thinking = make("details", { class: "thinking", hidden: true }, this.summary, this.thought);
    this.text = make("div", { class: "text" });
    this.calls = make("div", { class: "calls" });
    this.foot = make("p", { class: "quiet" });
    this.shown = new Map();
    const who = make("b", { class: "who" }, "Model");
    this.element = make(
      "li",
      { class: "assistant" },
      ...[who, this.thinking, this.text, this.calls, this.foot],
    );
  }

  add(delta) {
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) {
      this.thinking.hidden = false;
      this.thought.append(thought);
    }
    if (delta.content) {
      this.summary.textContent = "Reasoning";
      this.text.append(delta.content);
    }
    for (const call of delta.tool_calls || []) this.addCall(call);
  }

  addCall({ index, id, function: called = {} }) {
    let call = this.shown.get(index);
    if (!call) {
      call = { id, name: make("b"), given: make("pre"), result: make("textarea", { rows: 1 }) };
      this.shown.set(index, call);
      this.calls.append(make("div", { class: "call" }, "calls ", call.name, call.given));
    }
    if (called.name) call.name.append(called.name);
    if (called.arguments) call.given.append(called.arguments);
  }

  get empty() {
    return !this.shown.size && !this.text.textContent;
  }

  /** Offers a field for what each call gives, which the next message sends. */
  askForResults() {
    for (const { name, given, result } of this.shown.values()) {
      result.setAttribute("aria-label", `Result of ${name.textContent}`);
      result.placeholder = "What it gives; it is sent with the next message";
      given.after(result);
    }
  }

  /** The message that has been answered, and the results as they are now. */
  told() {
    const said = { role: "assistant", content: this.text.textContent || null };
    const calls = [...this.shown.values()];
    if (!calls.length) return said.content ? [said] : [];
    said.tool_calls = calls.map(({ id, name, given }) => ({
      id,
      type: "function",
      function: { name: name.textContent, arguments: given.textContent },
    }));
    const results = calls.map(({ id, result }) => ({
      role: "tool",
      tool_call_id: id,
      content: result.value,
    }));
    return [said, ...results];
  }
}

class Chat {
  constructor() {
    this.turns = [];
    this.abort = null;
    this.waiting = "";
    this.list = at("chat-log");
    this.images = new Images((words) => this.say(words, "bad"));
    this.model = offerModels("chat", ["text", "vision"], (card) => {
      this.images.allow(!!card?.architecture.input_modalities.includes("image"));
    });
    onChange(() => this.waiting && this.say(waitingFor(this.waiting)));
    at("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    at("chat-text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    at("chat-stop").addEventListener("click", () => this.stop());
    at("chat-new").addEventListener("click", () => this.clear());
  }

  say(words, tone) {
    tell(at("chat-said"), words, tone);
  }

  clear() {
    this.stop();
    this.turns = [];
    this.images.give();
    this.list.replaceChildren();
    this.say("");
    at("chat-text").focus();
  }

  stop() {
    this.abort?.abort();
  }

  /** Throws an error in words when an option makes no sense. */
  body() {
    const system = at("chat-system").value.trim();
    const first = system ? [{ role: "system", content: system }] : [];
    const body = {
      model: this.model.value,
      messages: [...first, ...this.turns.flatMap((turn) => turn.told())],
      stream: true,
      stream_options: { include_usage: true },
    };
    const { value: temperature } = at("chat-temperature");
    const { value: most } = at("chat-tokens");
    if (temperature) body.temperature = Number(temperature);
    if (most) body.max_tokens = Number(most);
    const tools = at("chat-tools").value.trim();
    if (tools) body.tools = toolsIn(tools);
    return body;
  }

  async send() {
    const text = at("chat-text").value;
    const urls = this.images.urls;
    const asked = text.trim() || urls.length ? new Question(text, urls) : null;
    if (this.abort || !(asked || this.turns.at(-1)?.shown?.size)) return;
    const before = this.turns.length;
    if (asked) this.turns.push(asked);
    let body;
    try {
      body = this.body();
    } catch (error) {
      this.turns.length = before;
      this.say(error.message, "bad");
      return;
    }
    this.images.give();
    at("chat-text").value = "";
    const turn = new Turn();
    if (asked) this.list.append(asked.element);
    this.list.append(turn.element);
    await this.answer(body, turn);
    if (turn.empty) this.takeBack(asked, text);
  }

  /** What got no answer is not part of the conversation, and can be sent again. */
  takeBack(asked, text) {
    this.turns = this.turns.filter((turn) => turn !== asked);
    at("chat-text").value ||= text;
  }

  async answer(body, turn) {
    const { turns } = this; // a new chat begins with others
    this.abort = new AbortController();
    at("chat-stop").disabled = false;
    at("chat-send").disabled = true;
    this.waiting = body.model;
    this.say(waitingFor(body.model));
    this.follow();
    try {
      turn.foot.textContent = await this.stream(body, turn);
      this.say("The answer is complete.");
      turn.askForResults();
      turns.push(turn);
    } catch (error) {
      const stopped = error.name === "AbortError";
      turn.foot.textContent = stopped ? "stopped" : "";
      turn.shown.clear(); // a call that broke off has no result
      if (!turn.empty) turns.push(turn);
      if (turns === this.turns) this.say(stopped ? "Stopped." : error.message, stopped ? "" : "bad");
    } finally {
      this.waiting = "";
      this.abort = null;
      this.done();
    }
  }

  done() {
    const focused = document.activeElement === at("chat-stop");
    at("chat-send").disabled = false;
    if (focused) at("chat-text").focus(); // a button that is disabled would lose it
    at("chat-stop").disabled = true;
    this.follow();
  }

  /** Returns what there is to know of the answer, in words. */
  async stream(body, turn) {
    const began = performance.now();
    const told = { first: 0, reason: "", usage: null };
    const response = await ask("/v1/chat/completions", {
      method: "POST",
      json: body,
      signal: this.abort.signal,
    });
    for await (const frame of frames(response)) {
      if (frame === "[DONE]") return inWords(told, began);
      const chunk = JSON.parse(frame);
      if (chunk.error) throw new Error(chunk.error.message);
      this.take(chunk, turn, told);
    }
    throw new Error("The answer broke off: the gateway went away.");
  }

  take({ choices, usage }, turn, told) {
    if (usage) told.usage = usage;
    const choice = choices[0];
    if (!choice) return;
    const following = this.atEnd();
    turn.add(choice.delta);
    if (choice.finish_reason) told.reason = choice.finish_reason;
    const { content, reasoning_content: thought, tool_calls: calls } = choice.delta;
    if (!told.first && (content || thought || calls)) {
      told.first = performance.now();
      this.waiting = "";
      this.say("Answering.");
    }
    if (following) this.follow();
  }

  atEnd() {
    return this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 60;
  }

  follow() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}

function toolsIn(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are no JSON: ${error.message}`);
  }
  const listed = Array.isArray(tools) ? tools : [tools];
  return listed.map((tool) => (tool.type ? tool : { type: "function", function: tool }));
}

function inWords({ first, reason, usage }, began) {
  const words = [];
  if (first) words.push(`first token after ${seconds((first - began) / 1000)}`);
  const tokens = usage?.completion_tokens;
  const took = (performance.now() - first) / 1000;
  if (tokens) {
    const speed = first && tokens > 1 ? `, ${((tokens - 1) / Math.max(took, 0.001)).toFixed(0)} a second` : "";
    words.push(`${usage.prompt_tokens} tokens in, ${tokens} out${speed}`);
  }
  if (ENDS[reason]) words.push(ENDS[reason]);
  return words.join(" · ");
}

export function prepareChat() {
  return new Chat();
}
