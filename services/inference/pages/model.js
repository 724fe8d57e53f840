// The page about the model that is served: what /info and /training say of it.
import { byId, element, readable } from "./dom.js";
import { factCards, headline } from "./model_facts.js";
import { trainingSections } from "./model_training.js";
import { explain, request, whenReady } from "./service.js";

const say = (text) => (byId("status").textContent = text);

/** Whether waiting helps: no connection, too busy, loading or restarting. */
const passes = (error) => [0, 429, 503].includes(error.status);

const ask = async (path) => {
  for (;;) {
    try {
      return await (await request(path)).json();
    } catch (error) {
      if (!passes(error)) throw error;
      say(explain(error));
      await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter ?? 1)));
      await whenReady(say);
    }
  }
};

const noTraining = (reason) =>
  [element("h2", {}, "Training"), element("p", { class: "plain" }, `No curves and samples: ${readable(reason)}.`)];

const show = async () => {
  byId("again").hidden = true;
  try {
    const info = await ask("info");
    const training = info.no_training_record === null ? await ask("training") : null;
    say("");
    document.title = `${readable(info.model)} · ownlm`;
    byId("name").textContent = readable(info.model);
    byId("facts").replaceChildren(...factCards(info));
    byId("headline").textContent = headline(info, training);
    byId("training").replaceChildren(...(training ? trainingSections(training) : noTraining(info.no_training_record)));
  } catch (error) {
    say(explain(error));
    byId("again").hidden = false;
  }
};

byId("again").addEventListener("click", show);
show();
