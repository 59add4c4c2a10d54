// Transcriptions of files, streamed, and speech, played.

import { ask, frames, read } from "./api.js";
import { at, bytes, make, seconds } from "./dom.js";
import { offerModels, runs } from "./playground.js";
import { modelOf, onChange } from "./store.js";

export function prepareTranscription() {
  const model = offerModels("transcription", ["transcription"]);
  runs("transcription", async (signal) => {
    const form = new FormData();
    form.append("model", model.value);
    const language = at("transcription-language").value.trim();
    if (language) form.append("language", language);
    form.append("stream", "true");
    form.append("file", at("transcription-file").files[0]);
    const what = at("transcription-translate").checked ? "translations" : "transcriptions";
    const out = at("transcription-out");
    out.replaceChildren();
    const response = await ask(`/v1/audio/${what}`, { method: "POST", form, signal });
    const line = make("li", { class: "text" });
    out.append(line);
    for await (const frame of frames(response)) {
      if (frame === "[DONE]") break;
      const event = JSON.parse(frame);
      if (event.error) throw new Error(event.error.message);
      if (event.type === "transcript.text.delta") line.append(event.delta);
      if (event.type === "transcript.text.done") {
        line.textContent = event.text;
        return "The transcription is complete.";
      }
    }
    throw new Error("The transcription broke off: the gateway went away.");
  });
}

export function prepareSpeech() {
  const model = offerModels("speech", ["speech"], (card) => card && offerVoices(card.id));
  let state = "";
  onChange(() => {
    const before = state;
    state = modelOf(model.value)?.state;
    if (before && before !== state && state === "ready") offerVoices(model.value); // it knows more now
  });
  let url = "";
  runs("speech", async (signal) => {
    const began = performance.now();
    const json = {
      model: model.value,
      input: at("speech-text").value,
      speed: Number(at("speech-speed").value) || 1,
      response_format: "wav",
    };
    if (at("speech-voice").value) json.voice = at("speech-voice").value;
    const response = await ask("/v1/audio/speech", { method: "POST", json, signal });
    const blob = await response.blob();
    URL.revokeObjectURL(url);
    url = URL.createObjectURL(blob);
    const player = make("audio", { controls: true, src: url, "aria-label": "Speech" });
    const save = make("a", { href: url, download: "speech.wav" }, "Save as a file");
    at("speech-out").replaceChildren(player, save);
    player.play().catch(() => {}); // a browser may want the button pressed instead
    return `${bytes(blob.size)} after ${seconds((performance.now() - began) / 1000)}.`;
  });
}

async function offerVoices(name) {
  const first = make("option", { value: "" }, "the model's own");
  let voices = [];
  try {
    ({ voices } = await read(`/v1/audio/voices?model=${encodeURIComponent(name)}`));
  } catch {
    // without the list the model's own voice is still there
  }
  const named = (voice) => (typeof voice === "string" ? voice : voice.id || voice.name);
  const options = voices.map((voice) => make("option", { value: named(voice) }, named(voice)));
  const select = at("speech-voice");
  const chosen = select.value;
  select.replaceChildren(first, ...options);
  if (voices.some((voice) => named(voice) === chosen)) select.value = chosen;
}
