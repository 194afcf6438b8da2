// The tokens page: a text is asked of both models as it is typed. What is drawn is in tokens-paint.js; the URL holds text, token and
// layer. Nothing typed is ever set as HTML.
(() => {
  const MOST_PINS = 12, PINS = "moe-geometry-pins";
  const geometry = (window.geometry = window.geometry || {});
  const state = { text: "", generate: 0, token: 0, layer: 0, mode: "experts", sides: { a: null, b: null }, answers: { a: null, b: null }, matched: null, order: "", trouble: {} };
  const tokens = Object.assign((geometry.tokens ??= {}), { state, times: [] });
  const page = () => document.getElementById("tokens-page");
  const field = () => document.getElementById("typed");
  const query = () => new URLSearchParams(location.search);
  const paint = () => tokens.paint && tokens.paint(state);

  // replaced, not pushed: a letter is no place to come back to; Dash does not listen to this, so no page is drawn anew
  const remember = () => {
    const now = query();
    now.set("k.tokens.text", state.text);
    now.set("k.tokens.at", state.token);
    history.replaceState(history.state, "", location.pathname + "?" + now.toString().replaceAll("%2F", "/"));
  };

  const post = async (path, body) => {
    const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json", accept: "application/json" }, body: JSON.stringify(body) });
    const told = await answer.json().catch(() => ({ detail: `The backend answered ${answer.status}.` }));
    if (!answer.ok) throw new Error(told.detail || told.title || "refused");
    return told;
  };
  const one = async (letter) => {
    const id = state.sides[letter];
    if (!id) { state.answers[letter] = null; state.trouble[letter] = "No checkpoint is chosen here."; return; }
    const [told, trouble] = await post("/api/v1/sentences", { checkpoint: id, text: state.text, generate: state.generate }).then((told) => [told, ""], (error) => [null, error.message]);
    if (state.sides[letter] !== id) return;
    if (told) state.answers[letter] = told;
    state.trouble[letter] = trouble;
  };
  // From the last key to the frame in which the tokens stand: marks that a test, or anybody's profiler, can read.
  const painted = () => requestAnimationFrame(() => setTimeout(() => {
    if (!performance.getEntriesByName("tokens-key").length) return;
    const { duration } = performance.measure("tokens-key-to-paint", "tokens-key");
    performance.clearMarks("tokens-key");
    tokens.times.push(duration);
    page()?.setAttribute("data-painted", String(tokens.times.length));
  }));
  // Asked at once, and one text at a time: what is typed meanwhile is asked when the answers are here. A worker goes on with
  // what a browser has given up, so whoever asks at every key waits for texts that nobody will see.
  let busy = false, again = false;
  const run = async () => {
    state.text = field()?.value ?? "";
    again = busy;
    if (!state.text) { state.answers = { a: null, b: null }; page()?.setAttribute("aria-busy", "false"); paint(); return; }
    if (busy) return;
    busy = true;
    remember();
    page()?.setAttribute("aria-busy", "true");
    await Promise.all(["a", "b"].map(one));
    busy = false;
    const late = again;
    if (late) run(); else page()?.setAttribute("aria-busy", "false");
    if (!state.text) state.answers = { a: null, b: null };
    const lengths = ["a", "b"].map((letter) => state.answers[letter]?.tokens.length ?? 0);
    if (Math.max(...lengths)) state.token = Math.min(state.token, Math.max(...lengths) - 1);
    paint();
    if (!late) painted();
  };
  tokens.run = run;

  // Which expert of A is which of B, where that has been asked (on the compare page, in either order).
  const numbers = (buffer) => {
    const view = new DataView(buffer), skip = 10 + view.getUint16(8, true), told = new TextDecoder("latin1").decode(new Uint8Array(buffer, 10, skip - 10));
    const [rows, columns] = told.match(/\((\d+), (\d+)\)/).slice(1).map(Number);
    return Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) => Number(view.getBigInt64(skip + 8 * (r * columns + c), true))));
  };
  const turned = (layers) => layers.map((row) => { const back = []; row.forEach((b, a) => { if (b >= 0) back[b] = a; }); return Array.from({ length: Math.max(row.length, back.length) }, (_, b) => back[b] ?? -1); });
  const match = async () => {
    const { a, b } = state.sides, prompts = page()?.dataset.prompts;
    state.matched = null;
    state.order = a === b ? "the same checkpoint twice" : "experts are not matched yet (Expert matching on the compare page does it): until then colours are each model's own numbers";
    if (!a || !b || a === b) return;
    try {
      const { questions } = await (await fetch("/api/v1/questions")).json();
      const found = questions.find((q) => q.measure === "expert_matching" && [a, b].every((id) => q.checkpoints.includes(id)) && (!prompts || q.prompts === prompts));
      if (!found) return;
      const [told, partner] = await Promise.all([fetch(`/api/v1/questions/${found.key}`).then((r) => r.json()), fetch(`/api/v1/questions/${found.key}/arrays/partner`).then((r) => r.arrayBuffer())]);
      state.matched = found.checkpoints[0] === a ? numbers(partner) : turned(numbers(partner));
      state.order = `colours in A's order: b is ${told.facts["order of b"]} (${found.prompts})`;
    } catch { /* the sentence above stands */ }
  };

  const sides = () => {
    const { a, b, layer } = geometry.told?.() ?? {};
    const changed = (a || null) !== state.sides.a || (b || null) !== state.sides.b;
    state.layer = Number(layer ?? 0);
    if (changed) { state.sides = { a: a || null, b: b || null }; match().then(run); } else paint();
  };

  const walk = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e6, 0], End: [1e6, 0] };
  const step = (event) => {
    const by = walk[event.key], side = event.target.closest?.("[data-side]")?.dataset.side;
    const answer = state.answers[side];
    if (!by || !answer) return;
    event.preventDefault();
    state.token = Math.min(answer.tokens.length - 1, Math.max(0, state.token + by[0]));
    if (by[1]) {
      state.layer = Math.min(answer.layers.length - 1, Math.max(0, state.layer + by[1]));
      geometry.change({ layer: state.layer });
    }
    remember();
    paint();
    geometry.say(tokens.words(state, side));
  };

  const pins = () => { try { return JSON.parse(localStorage.getItem(PINS)) ?? []; } catch { return []; } };
  const pinned = () => {
    const place = document.getElementById("typed-pins");
    place?.replaceChildren(...pins().map((text, at) => {
      const use = Object.assign(document.createElement("button"), { type: "button", className: "step-button clip", textContent: text.slice(0, 40), title: text });
      use.dataset.act = "use-pin"; use.dataset.at = at;
      const drop = Object.assign(document.createElement("button"), { type: "button", className: "textual", textContent: "unpin" });
      drop.dataset.act = "drop-pin"; drop.dataset.at = at;
      drop.setAttribute("aria-label", `Unpin ${text.slice(0, 40)}`);
      const both = document.createElement("span");
      both.className = "row";
      both.append(use, drop);
      return both;
    }));
  };
  const keep = (list) => { localStorage.setItem(PINS, JSON.stringify(list.slice(0, MOST_PINS))); pinned(); };
  // React holds the field's value: only its own setter is heard
  const fill = (text) => {
    Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(field(), text);
    field().dispatchEvent(new Event("input", { bubbles: true }));
  };
  Object.assign(geometry.acts ?? {}, {
    "generate-tokens": (b) => { state.generate = Number(b.dataset.count); performance.mark("tokens-key"); run(); },
    "pin-text": () => { const text = field().value; if (text) keep([text, ...pins().filter((p) => p !== text)]); },
    "use-pin": (b) => fill(pins()[Number(b.dataset.at)]),
    "drop-pin": (b) => keep(pins().filter((_, at) => at !== Number(b.dataset.at))),
    "score-mode": (b) => { state.mode = b.dataset.mode; paint(); },
    "pick-token": (b) => { state.token = Number(b.dataset.at); remember(); paint(); },
  });

  document.addEventListener("input", (event) => {
    if (event.target.id !== "typed") return;
    performance.clearMarks("tokens-key");
    performance.mark("tokens-key");
    state.generate = 0;
    run();
  });
  document.addEventListener("keydown", (event) => { if (page()) step(event); });

  // The context bar says what is chosen; only what it says anew counts, for a key here is ahead of it.
  let heard = "";
  const hear = () => {
    const { a, b, layer } = geometry.told?.() ?? {};
    const now = JSON.stringify([a, b, layer]);
    if (a === undefined || now === heard) return;
    heard = now;
    sides();
  };
  const begin = () => {
    if (!page() || page().dataset.begun || !document.getElementById("layer-told") || !field()) return;
    page().dataset.begun = "yes";
    state.sides = { a: null, b: null };
    state.generate = 0;
    state.token = Number(query().get("k.tokens.at")) || 0;
    heard = "";
    pinned();
    const text = query().get("k.tokens.text");
    if (text && text !== field().value) fill(text);
  };
  new MutationObserver(() => { begin(); if (page()?.dataset.begun) hear(); })
    .observe(document.documentElement, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-a", "data-b", "data-layer"] });
  new MutationObserver(() => { if (page()) paint(); }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
  addEventListener("resize", () => { if (page()) paint(); });
})();
