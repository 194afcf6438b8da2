// Everything a click does. State lives in the URL: a control only changes the query, a button only names its act.
(() => {
  const geometry = (window.geometry = window.geometry || {});
  const set = (id, props) => window.dash_clientside.set_props(id, props);
  const told = () => document.getElementById("layer-told")?.dataset ?? {};
  geometry.set = set;
  geometry.told = told;
  geometry.say = (text) => { const live = document.getElementById("live-region"); if (live) live.textContent = text; };
  // the address changes at once, so that two quick keys never read a stale query; dcc.Location listens to popstate
  geometry.visit = (url) => { history.pushState({}, "", url); window.dispatchEvent(new PopStateEvent("popstate")); };
  geometry.change = (changes) => {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value === null ? query.delete(name) : query.set(name, value);
    geometry.visit(location.pathname + "?" + query.toString().replaceAll("%2F", "/"));
  };
  geometry.refresh = () => set("refresh", { data: Date.now() });

  const plateOf = (node) => node.closest(".plate[data-key]");
  const remove = (path) => fetch(path, { method: "DELETE" });
  const copy = async (text) => { await navigator.clipboard?.writeText(text); geometry.say("Link copied"); };
  const image = (plate, format) => {
    const drawn = plate?.querySelector(".js-plotly-plot");
    if (drawn) window.Plotly.downloadImage(drawn, { format, filename: plate.dataset.measure, width: drawn.clientWidth, height: drawn.clientHeight, scale: format === "png" ? 2 : 1 });
  };

  const acts = {
    ask: (b) => geometry.ask([plateOf(b)]),
    "ask-all": () => geometry.ask([...document.querySelectorAll('.plate[data-key][data-state="not-asked"]')]),
    cancel: (b) => JSON.parse(plateOf(b).dataset.jobs).forEach((id) => remove(`/api/v1/jobs/${id}`)),
    "cancel-job": (b) => remove(`/api/v1/jobs/${b.dataset.job}`),
    "copy-link": () => copy(location.href),
    "copy-page": () => copy(location.href),
    full: (b) => plateOf(b).closest(".slot").classList.toggle("full"),
    table: (b) => set("table-asked", { data: { key: b.dataset.answer, title: plateOf(b).getAttribute("aria-label"), at: Date.now() } }),
    png: (b) => image(plateOf(b), "png"),
    svg: (b) => image(plateOf(b), "svg"),
    theme: () => set("theme", { data: document.documentElement.dataset.mantineColorScheme === "dark" ? "light" : "dark" }),
    jobs: () => set("jobs", { opened: true }),
    swap: () => geometry.change({ a: told().b, b: told().a }),
    baseline: (b) => geometry.change({ a: b.dataset.own, [b.dataset.letter]: b.dataset.first }),
    drop: (b) => geometry.change({ [b.dataset.letter]: null }),
    refresh: () => geometry.refresh(),
    "delete-prompts": async (b) => {
      if (b.dataset.sure) { await remove(`/api/v1/prompts/${encodeURIComponent(b.dataset.name)}`); geometry.refresh(); return; }
      b.dataset.sure = "yes"; b.textContent = "Really delete?";
    },
  };
  geometry.acts = acts;

  const shut = (but) => document.querySelectorAll("details.menu[open]").forEach((d) => d !== but && d.removeAttribute("open"));
  geometry.shut = () => { shut(); document.querySelectorAll(".slot.full").forEach((s) => s.classList.remove("full")); };

  document.addEventListener("click", (event) => {
    const menu = event.target.closest("details.menu");
    shut(menu);
    if (event.target.closest("a.menu-line")) menu.removeAttribute("open");
    const button = event.target.closest("button[data-parameter],[data-act]");
    if (!button || button.getAttribute("aria-disabled") === "true") return;
    if (button.dataset.act) acts[button.dataset.act]?.(button);
    else geometry.change({ [event.shiftKey && button.dataset.shift ? button.dataset.shift : button.dataset.parameter]: button.dataset.value });
    if (menu && !button.closest(".meaning-fold")) menu.removeAttribute("open");
  });
  document.addEventListener("change", (event) => {
    const field = event.target.closest("label[data-parameter]");
    if (field) geometry.change({ [field.dataset.parameter]: event.target.value });
  });
  document.addEventListener("input", (event) => {
    if (!event.target.closest?.(".filter")) return;
    const wanted = event.target.value.toLowerCase();
    event.target.closest(".menu-open").querySelectorAll(".choice").forEach((c) => { c.hidden = !c.dataset.name.toLowerCase().includes(wanted); });
  });
})();
