// Panels: a page lays down slots, and one request fills all that wait. Each comes as a line of its own and is shown at once.
(() => {
  const geometry = (window.geometry = window.geometry || {});
  const slots = () => [...document.querySelectorAll(".slot[data-place]")];
  const state = (slot) => slot.querySelector(".plate").dataset.state;
  const here = () => location.pathname + location.search;
  let turns = 0, following = null;

  const show = (slot, { plate, figure, of, height }) => {
    geometry.fit(slot, plate);
    Object.assign(slot, { of, height });
    if (figure !== undefined) slot.figure = figure; // a refusal greys the figure that was there
    const frame = slot.querySelector(".figure");
    if (frame && slot.figure) geometry.draw(frame, slot.figure);
  };
  async function* lines(response) {
    let rest = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part; !(part = await reader.read()).done; ) {
      const parts = (rest + part.value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  }
  // `more` says why: `ask` puts the questions, `failed` brings what ended jobs said, `follow` leaves alone what shows already what is asked
  geometry.look = async (wanted, { follow, ...more } = {}) => {
    if (!wanted.length) return;
    const at = here(), turn = ++turns, places = wanted.map((slot) => slot.dataset.place);
    if (follow) { following?.abort(); following = new AbortController(); }
    const panels = wanted.map((slot, i) => ({ place: JSON.parse(places[i]), height: slot.height, ...(follow ? { of: slot.of } : {}), ...more }));
    const body = JSON.stringify({ path: location.pathname, search: location.search, panels });
    try {
      const response = await fetch("/panels", { method: "POST", headers: { "content-type": "application/json" }, body, signal: follow ? following.signal : null });
      for await (const line of lines(response)) {
        const { index, ...content } = JSON.parse(line), slot = wanted[index];
        // what was looked up before a later look has answered is old; what was asked for is not
        const old = at !== here() || slot.dataset.place !== places[index] || (!more.ask && turn < (slot.turn ?? 0));
        if (slot.isConnected && !old) { slot.turn = turn; show(slot, content); }
      }
    } catch (error) { if (error.name !== "AbortError") console.warn(`panels: ${error.message}`); }
  };

  // those in sight first, and all of them as the page has them
  const inSight = (slot) => { const { top, bottom } = slot.getBoundingClientRect(); return top < innerHeight && bottom > 0; };
  const lay = () => {
    const fresh = slots().filter((slot) => slot.laid !== slot.dataset.laid);
    for (const slot of fresh) {
      Object.assign(slot, { laid: slot.dataset.laid, path: location.pathname, turn: 0, figure: null });
      show(slot, JSON.parse(slot.dataset.panel));
    }
    const waiting = fresh.filter((slot) => state(slot) === "loading"), seen = new Set(waiting.filter(inSight));
    geometry.look([...seen, ...waiting.filter((slot) => !seen.has(slot))]);
  };
  const follow = () => geometry.look(slots().filter((slot) => slot.path === location.pathname && slot.laid), { follow: true });
  for (const name of ["popstate", "_dashprivate_pushstate"]) window.addEventListener(name, follow);
  geometry.ask = (plates) => geometry.look(plates.map((plate) => plate.closest(".slot")), { ask: true });
  const start = () => new MutationObserver(lay).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-laid"] });
  document.body ? start() : document.addEventListener("DOMContentLoaded", start);
})();
