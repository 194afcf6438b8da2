// Figures: they arrive in light colours and are recoloured here, so the theme asks no server; and they are drawn one by one, from the top
// of the page: drawing all of them in one task would show none before the last.
(() => {
  const geometry = (window.geometry = window.geometry || {});
  const GATHER = 15; // ms in which figures that came together are put in order
  const waiting = new Set(), drawn = new Set();
  let look = null, stored = null, busy = false;
  geometry.resolve = (chosen) =>
    new URLSearchParams(location.search).get("theme") || chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  // a copy in the theme's colours: plotly writes into what it is given
  const coloured = (figure) => {
    const dark = geometry.resolve(stored) === "dark";
    const walk = (node) => {
      if (typeof node === "string") return dark && node.length === 7 && node[0] === "#" ? (look.dark[node.toLowerCase()] ?? node) : node;
      if (Array.isArray(node)) return node.map(walk);
      if (!node || typeof node !== "object" || "bdata" in node) return node;
      return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, name === "customdata" ? value : walk(value)]));
    };
    return walk({ ...figure, layout: { ...figure.layout, template: look.template } });
  };
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target, contentRect: { width, height } }) => {
    const plot = target.querySelector(".js-plotly-plot"), now = plot?._fullLayout;
    if (now && width && (Math.abs(now.width - width) >= 1 || Math.abs(now.height - height) >= 1)) window.Plotly.Plots.resize(plot);
  }));
  const forget = () => drawn.forEach((frame) => {
    if (frame.isConnected) return;
    drawn.delete(frame);
    sizes.unobserve(frame);
    window.Plotly.purge(frame.querySelector(".plot"));
  });
  const paint = async (frame) => {
    if (!frame.isConnected || !frame.geometry) return;
    if (!frame.querySelector(":scope > .fill > .plot")) frame.innerHTML = '<div class="fill"><div class="plot"></div></div>';
    await window.Plotly.react(frame.querySelector(".plot"), { ...geometry.atStep(coloured(frame.geometry)), config: look.config });
    if (!drawn.has(frame)) { drawn.add(frame); sizes.observe(frame); }
  };

  // reading order; what is far above the window comes last
  const order = (frame) => {
    const { top, left } = frame.getBoundingClientRect();
    return (top < -innerHeight ? 1e6 - top : top) + left / 1e4;
  };
  const painted = (then) => (document.hidden ? setTimeout(then) : requestAnimationFrame(() => setTimeout(then)));
  const next = async () => {
    busy = waiting.size > 0;
    if (!busy) return forget();
    if (!window.Plotly) return void setTimeout(next, GATHER);
    look ??= JSON.parse(document.getElementById("look").textContent);
    const places = new Map([...waiting].map((frame) => [frame, order(frame)]));
    const first = [...waiting].reduce((a, b) => (places.get(b) < places.get(a) ? b : a));
    waiting.delete(first);
    await paint(first).finally(() => painted(next));
  };
  geometry.draw = (frame, figure) => {
    frame.geometry = figure;
    waiting.add(frame);
    if (!busy) { busy = true; setTimeout(next, GATHER); }
  };

  // a frame may also bring its figure with it, as text
  const told = (frame) => geometry.draw(frame, JSON.parse(frame.dataset.figure));
  const start = () => new MutationObserver((changes) => changes.forEach(({ target }) => target.dataset.figure && told(target)))
    .observe(document.body, { subtree: true, attributes: true, attributeFilter: ["data-figure"] });
  document.body ? start() : document.addEventListener("DOMContentLoaded", start);

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.geometry = {
    scheme: (chosen) => {
      stored = chosen;
      drawn.forEach((frame) => geometry.draw(frame, frame.geometry));
      return geometry.resolve(chosen);
    },
  };
})();
