// Embeddings, with how near two texts are to each other, and documents ranked for a question.

import { read } from "./api.js";
import { at, make } from "./dom.js";
import { offerModels, runs } from "./playground.js";

const SHOWN = 8;

export function prepareEmbeddings() {
  const model = offerModels("embeddings", ["embedding"]);
  runs("embeddings", async (signal) => {
    const texts = [at("embeddings-a").value, at("embeddings-b").value].filter((text) => text.trim());
    const json = { model: model.value, input: texts };
    const { data, usage } = await read("/v1/embeddings", { method: "POST", json, signal });
    const vectors = data.map(({ embedding }) => embedding);
    at("embeddings-out").replaceChildren(...shown(vectors));
    return `${usage.prompt_tokens} tokens.`;
  });
}

function shown(vectors) {
  const facts = [["Dimensions", String(vectors[0].length)]];
  if (vectors.length > 1) facts.push(["Cosine of the two", cosine(...vectors).toFixed(4)]);
  for (const [index, vector] of vectors.entries()) {
    const first = vector.slice(0, SHOWN).map((value) => value.toFixed(4));
    facts.push([`Vector ${index + 1}`, `${first.join(", ")}, …`]);
  }
  return facts.map(([name, value]) => make("p", { class: "fact" }, make("b", {}, name), ` ${value}`));
}

export function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, index) => sum + value * y[index], 0);
  const lengths = Math.sqrt(dot(a, a) * dot(b, b));
  return lengths ? dot(a, b) / lengths : 0;
}

export function prepareRerank() {
  const model = offerModels("rerank", ["rerank"]);
  runs("rerank", async (signal) => {
    const documents = at("rerank-documents").value.split("\n").filter((line) => line.trim());
    const json = { model: model.value, query: at("rerank-query").value, documents };
    const { results } = await read("/v1/rerank", { method: "POST", json, signal });
    at("rerank-out").replaceChildren(
      ...results.map(({ index, relevance_score: score }) =>
        make("li", { class: "row" }, make("b", {}, score.toFixed(3)), make("span", {}, documents[index])),
      ),
    );
    return `${results.length} ranked.`;
  });
}
