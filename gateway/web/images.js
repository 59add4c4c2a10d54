// Images for a message: chosen, pasted or dropped, and sent as data URLs.

import { at, make } from "./dom.js";

const MOST = 8;
const MOST_BYTES = 10 * 2 ** 20;

/** `tell` gets what is wrong with an image, in words. */
export class Images {
  constructor(tell) {
    this.tell = tell;
    this.urls = [];
    this.allowed = false;
    this.list = at("chat-images");
    const input = at("chat-files");
    input.addEventListener("change", () => {
      this.add([...input.files]);
      input.value = "";
    });
    at("chat-form").addEventListener("paste", (event) => this.take(event, event.clipboardData));
    // Anywhere in the chat, where the browser would open the image in place of the page.
    at("chat").addEventListener("dragover", (event) => event.preventDefault());
    at("chat").addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event, event.dataTransfer);
    });
  }

  /** Whether the model that is chosen looks at images. */
  allow(allowed) {
    this.allowed = allowed;
    at("chat-files").disabled = !allowed;
    at("chat-files").parentElement.hidden = !allowed;
  }

  take(event, data) {
    const files = [...data.files].filter((file) => file.type.startsWith("image/"));
    if (!files.length) return;
    event.preventDefault();
    this.add(files);
  }

  async add(files) {
    if (!this.allowed) {
      this.tell("This model does not look at images; choose one of kind vision.");
      return;
    }
    for (const file of files) {
      if (this.urls.length >= MOST) this.tell(`A message takes ${MOST} images at most.`);
      else if (file.size > MOST_BYTES) this.tell(`${file.name} is larger than 10 MB.`);
      else this.keep(await dataUrl(file), file.name);
    }
  }

  keep(url, name) {
    this.urls.push(url);
    const remove = make("button", { type: "button", class: "plain", "aria-label": `Remove ${name}` }, "✕");
    const item = make("li", {}, make("img", { src: url, alt: name }), remove);
    remove.addEventListener("click", () => {
      this.urls.splice(this.urls.indexOf(url), 1);
      item.remove();
      at("chat-text").focus();
    });
    this.list.append(item);
  }

  /** What there is to send, which is then forgotten. */
  give() {
    const urls = this.urls;
    this.urls = [];
    this.list.replaceChildren();
    return urls;
  }
}

function dataUrl(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => failed(reader.error));
    reader.readAsDataURL(file);
  });
}
