// What a model is: architecture, parameters, limits, tokenizer, origin.
import { formatNumber } from "./chart_scale.js";
import { copy, element, grouped, readable } from "./dom.js";

const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
const percent = new Intl.NumberFormat("en-US", { style: "percent", minimumFractionDigits: 1 });

const FAMILIES = { llama: "Llama", qwen2: "Qwen2", qwen3: "Qwen3" };
const PARTS = { embedding: "Token embedding", attention: "Attention", feed_forward: "Feed-forward", norms: "Norms",
  output: "Output projection" };

/** A list of terms; those whose value is null are left out. @param {[string, unknown][]} rows */
export const facts = (rows) => {
  const known = rows.filter(([, value]) => value !== null);
  return element("dl", {}, ...known.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
};

/** A section with a heading. */
export const card = (title, ...content) =>
  element("section", { class: "card", "aria-label": title }, element("h2", {}, title), ...content);

/** What the model is, in a sentence or two. @returns {string} */
export const headline = (info, training) => {
  const family = FAMILIES[info.architecture.family] ?? info.architecture.family;
  const trained = training ? ` trained on ${short.format(training.data.training.tokens)} tokens of text` : "";
  const bits = training?.bits_per_byte ?? info.origin.bits_per_byte;
  const result = bits === null ? "" : ` Validation: ${bits.toPrecision(3)} bits per byte.`;
  const size = short.format(info.parameters);
  return `${readable(info.model)}: a ${family} model of ${size} parameters${trained}.${result}`;
};

const architecture = ({ architecture: a, vocab_size, context_length }) => card("Architecture", facts([
  ["Family", FAMILIES[a.family] ?? a.family],
  ["Layers", grouped(a.num_layers)],
  ["Width", `${grouped(a.d_model)} channels`],
  ["Attention", `${grouped(a.num_heads)} heads of ${grouped(a.head_dim)} channels`],
  ["Keys and values", a.num_heads === a.num_kv_heads ? null
    : `${grouped(a.num_kv_heads)} heads, each for ${grouped(a.num_heads / a.num_kv_heads)} of the queries'`],
  ["Feed-forward", `SwiGLU, ${grouped(a.d_ff)} channels`],
  ["Positions", `RoPE, theta ${grouped(a.rope_theta)}${a.rope_scaling ? `, scaled: ${a.rope_scaling}` : ""}`],
  ["Norm", `RMSNorm before each sublayer, epsilon ${formatNumber(a.norm_eps)}`],
  ["Query-key norm", a.qk_norm ? "RMSNorm of each head" : null],
  ["Biases", a.attention_bias ? `of the projections ${[...a.attention_bias].join(", ")}` : "none"],
  ["Embeddings", a.tie_embeddings ? "input and output share one matrix" : "input and output have a matrix each"],
  ["Vocabulary", `${grouped(vocab_size)} tokens`],
  ["Context", `${grouped(context_length)} tokens, prompt and answer together`],
]));

const bar = (share) => {
  const filled = element("span", { class: "bar" });
  filled.style.width = percent.format(share);
  return filled;
};

const parameters = ({ parameters: total, architecture: { parameters: parts } }) => {
  const row = ([name, size]) => element("tr", {}, element("th", { scope: "row" }, PARTS[name] ?? name),
    element("td", { class: "number" }, size === 0 ? "shared" : grouped(size)),
    element("td", { class: "number" }, percent.format(size / total)),
    element("td", { class: "share", "aria-hidden": "true" }, size ? bar(size / total) : null));
  const heading = (text) => element("th", { scope: "col", class: text === "Part" ? null : "number" }, text);
  return card("Parameters", element("p", {}, `${grouped(total)} in all`),
    element("table", { class: "parts" },
      element("thead", {}, element("tr", {}, ...["Part", "Parameters", "Share"].map(heading), element("td"))),
      element("tbody", {}, ...Object.entries(parts).map(row))));
};

const origin = ({ origin: o, device, dtype, version, fingerprint }) => card("Origin", facts([
  ["Written by", o.ownlm_version ? `ownlm ${o.ownlm_version}` : "another program: the folder has no ownlm.json"],
  ["Format", o.architecture ? `Hugging Face, ${o.architecture}` : "Hugging Face"],
  ["transformers", o.transformers_version],
  ["Files", o.has_checksums ? "as written, by their checksums" : "not verified: the folder has no checksums"],
  ["Training steps", o.steps === null ? null : grouped(o.steps)],
  ["Tokens seen", o.tokens === null ? null : grouped(o.tokens)],
  ["Validation loss", o.validation_loss === null ? null : `${o.validation_loss.toPrecision(4)} nats per token`],
  ["Served by", `ownlm ${version}, on ${device} in ${dtype}`],
  ["Tokenizer", element("span", { class: "mono" }, fingerprint)],
]), element("button", { type: "button", click: (event) => copy(event.currentTarget, fingerprint) }, "Copy fingerprint"));

const evaluations = ({ origin: { evaluations: results } }) => {
  const row = ({ file, format, questions, metric, value, stderr }) => element("tr", {},
    element("th", { scope: "row" }, readable(file)), element("td", {}, `${readable(format)}, ${readable(metric)}`),
    element("td", { class: "number" }, grouped(questions)),
    element("td", { class: "number" }, `${formatNumber(value)}${stderr === null ? "" : ` ± ${formatNumber(stderr)}`}`));
  const heading = (text) => element("th", { scope: "col", class: "number" }, text);
  return results.length === 0 ? null : card("Questions", element("p", {}, "With the standard error of the result"),
    element("table", { class: "parts results" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "File"),
        element("th", { scope: "col" }, "Metric"), heading("Questions"), heading("Result"))),
      element("tbody", {}, ...results.map(row))));
};

/** The cards of what /info says. @returns {HTMLElement[]} */
export const factCards = (info) =>
  [architecture, parameters, origin, evaluations].map((make) => make(info)).filter((made) => made !== null);
