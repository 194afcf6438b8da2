// Which step of a run the figures show. Each figure brings a frame for every step, so moving asks no server; the URL holds the step it
// stays at, without telling the pages, which need not know.
(() => {
  const geometry = (window.geometry = window.geometry || {});
  const PACE = 900; // ms a step when playing
  const AT_ONCE = { mode: "immediate", transition: { duration: 0 }, frame: { duration: 0, redraw: false } };
  const SETTLED = 250; // ms without a move before the URL is written: browsers allow some hundred writes a minute, and each asks for the icon anew
  let timer = 0, chosen = null, writing = 0;
  const bar = () => document.getElementById("step-bar");
  const read = (name) => JSON.parse(bar()?.dataset[name] ?? "[]");
  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const at = () => {
    const steps = read("steps"), found = steps.indexOf(chosen ?? new URLSearchParams(location.search).get("at"));
    return found < 0 ? steps.length - 1 : found;
  };
  const follows = (figure) => figure?.layout?.meta?.steps && figure.layout.meta.steps === read("steps").length;

  // a figure that is about to be drawn starts at the step chosen, not at its last one
  geometry.atStep = (figure) => {
    if (follows(figure)) figure.frames[at()].traces.forEach((trace, i) => Object.assign(figure.data[trace], figure.frames[at()].data[i]));
    return figure;
  };
  const move = () => {
    for (const graph of document.querySelectorAll("main .js-plotly-plot"))
      // a step that is overtaken by the next one is no error
      if (follows(graph)) window.Plotly.animate(graph, [String(at())], AT_ONCE).catch(() => {});
  };
  const tell = () => {
    const input = bar()?.querySelector("input"), words = read("told");
    if (!input) return;
    input.value = at();
    input.setAttribute("aria-valuetext", `${words[at()]}, ${at() + 1} of ${words.length}`);
    document.getElementById("step-told").textContent = `${words[at()]}, ${at() + 1} of ${words.length}`;
    document.getElementById("step-play-told").textContent = timer ? "Pause" : calm() ? "Next step" : "Play";
  };
  const write = () => {
    clearTimeout(writing);
    writing = 0;
    if (chosen === null || !bar()) return;
    const query = new URLSearchParams(location.search);
    query.set("at", chosen);
    history.replaceState(history.state, "", `${location.pathname}?${query.toString().replaceAll("%2F", "/")}`);
  };
  const go = (step) => {
    chosen = read("steps")[step];
    clearTimeout(writing);
    writing = timer ? 0 : setTimeout(write, SETTLED);
    tell();
    move();
  };
  const stop = () => { if (timer) { clearInterval(timer); timer = 0; write(); } tell(); };
  const next = () => (at() + 1) % read("steps").length;
  const play = () => {
    if (timer) return stop();
    // whoever wants no motion gets a step for each press
    if (calm()) { go(next()); geometry.say(read("told")[at()]); return; }
    const beat = () => {
      if (!bar()) return stop();
      go(next());
      if (at() === read("steps").length - 1) stop();
    };
    timer = setInterval(beat, PACE);
    beat();
  };
  const build = () => {
    if (!bar()) return stop();
    if (bar().built === bar().dataset.steps && bar().querySelector("input")) return tell();
    const input = document.createElement("input");
    Object.assign(input, { type: "range", min: 0, max: read("steps").length - 1, step: 1 });
    input.setAttribute("aria-label", "Step");
    input.addEventListener("input", () => { const wanted = Number(input.value); if (timer) stop(); go(wanted); });
    bar().replaceChildren(input);
    bar().built = bar().dataset.steps;
    tell();
  };
  const start = () => {
    geometry.acts["play-steps"] = play;
    window.addEventListener("popstate", () => {
      if (writing || timer) write(); // another control changed the query before this one had written itself
      else chosen = null;
      if (bar()) { tell(); move(); }
    });
    new MutationObserver((changes) => {
      if (!bar()) { stop(); chosen = null; return; }
      if (bar().built !== bar().dataset.steps || changes.some((c) => c.attributeName === "data-told")) build();
    }).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-steps", "data-told"] });
    build();
  };
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", start) : start();
})();
