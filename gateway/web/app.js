// The page: which part of it is shown, how the gateway is, and what happens when it goes away.

import { prepareKey } from "./api.js";
import { showEvent, showLogs, tellEvents } from "./activity.js";
import { prepareSpeech, prepareTranscription } from "./audio.js";
import { prepareChat } from "./chat.js";
import { at, note, say, seconds } from "./dom.js";
import { showMemory } from "./memory.js";
import { showModels } from "./models.js";
import { onChange } from "./store.js";
import { prepareEmbeddings, prepareRerank } from "./vectors.js";
import { watch } from "./watch.js";

const PAGES = ["overview", "playground", "activity"];
const KINDS = ["chat", "embeddings", "rerank", "transcription", "speech"];

function showPage(lookAtLogs) {
  let place = location.hash.slice(1) || "overview";
  if (place === "playground") place = document.querySelector("#kinds [aria-current]")?.hash.slice(1) || "chat";
  const kind = KINDS.includes(place) ? place : null;
  const page = kind ? "playground" : place;
  if (!PAGES.includes(page)) return;
  for (const each of PAGES) at(each).hidden = each !== page;
  for (const each of KINDS) if (kind) at(each).hidden = each !== kind;
  for (const link of document.querySelectorAll("nav a")) {
    const name = link.hash.slice(1);
    if (name === page || name === kind) link.setAttribute("aria-current", "page");
    else if (PAGES.includes(name) || kind) link.removeAttribute("aria-current");
  }
  lookAtLogs(page === "activity");
}

function showHealth({ status, away }) {
  const state = at("state");
  note(at("banner"), away);
  if (away) {
    say(state, status?.draining ? "draining" : "not connected");
    state.dataset.tone = "bad";
  } else if (status) {
    say(state, "running");
    state.dataset.tone = "good";
  }
  if (status) say(at("facts"), `${status.version} · up ${seconds(status.uptime_s)}`);
}

function prepareSkip() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says which page is shown, and stays
    at("main").focus();
  });
}

prepareSkip();
prepareKey();
showMemory();
showModels();
prepareChat();
prepareEmbeddings();
prepareRerank();
prepareTranscription();
prepareSpeech();
onChange(showHealth);
const lookAtLogs = showLogs();
addEventListener("hashchange", () => showPage(lookAtLogs));
showPage(lookAtLogs);
watch(showEvent, tellEvents);
