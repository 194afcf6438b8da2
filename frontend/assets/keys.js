// Keyboard: one small table. A key does what a button does, or changes the URL.
(() => {
  const go = { o: "/", k: "/checkpoints", p: "/prompts", r: "/routing", w: "/router", u: "/coupling", f: "/function", e: "/representation", s: "/specialisation", t: "/trajectories", y: "/tokens", l: "/live", x: "/experiments", c: "/compare", j: "/jobs" };
  let leader = false;
  const geometry = () => window.geometry;
  const layer = (delta) => {
    const { layer: at, last } = geometry().told();
    if (at !== undefined) geometry().change({ layer: Math.min(Number(last), Math.max(0, Number(at) + delta)) });
  };
  const plate = () => document.activeElement?.closest(".plate[data-key]") ?? document.querySelector(".plate[data-key]:hover");
  const press = (act) => {
    plate()?.querySelectorAll("details.menu").forEach(geometry().unfold);
    plate()?.querySelector(`[data-act="${act}"]`)?.click();
  };
  const meaning = () => {
    const menu = plate()?.querySelector("details.menu:not(.pick)");
    if (!menu) return;
    geometry().unfold(menu);
    menu.open = true;
    menu.querySelector(".meaning-fold").open = true;
    menu.querySelector("summary").focus();
  };
  const acts = {
    g: () => { leader = true; },
    ",": () => layer(-1), ".": () => layer(1),
    x: () => geometry().acts.swap(), t: () => geometry().acts.theme(), j: () => geometry().acts.jobs(),
    c: () => press("copy-link"), v: () => press("table"), f: () => press("full"), h: meaning,
    "/": (event) => { const chip = document.getElementById("chip-a"); if (chip) { event.preventDefault(); geometry().unfold(chip); chip.open = true; chip.querySelector("input")?.focus(); } },
    "[": () => document.body.classList.toggle("folded"),
    "?": () => geometry().set("keys", { opened: true }),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      const open = event.target.closest?.("details.menu[open]");
      geometry().shut();
      open?.querySelector("summary")?.focus();
    }
    if (event.target.closest?.("input,textarea,[contenteditable]") || event.metaKey || event.ctrlKey || event.altKey) return;
    if (leader) {
      leader = false;
      if (go[event.key]) { document.querySelector(`.rail a[href^="${go[event.key]}?"],.rail a[href="${go[event.key]}"]`)?.click(); return; }
    }
    acts[event.key]?.(event);
  });
})();
