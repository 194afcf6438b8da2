// Light and dark without the server: figures arrive in light colours and are recoloured here; and they are drawn one by one, from the
// top of the page: drawing all of them in one task would show none before the last.
window.geometry = window.geometry || {};
window.geometry.resolve = (stored) =>
  new URLSearchParams(location.search).get("theme") || stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

window.geometry.turn = (() => {
  const waiting = [];
  const GATHER = 15; // ms in which figures that came together are put in order
  let busy = false;
  // reading order; what is far above the window comes last
  const order = ({ id }) => {
    const frame = document.getElementById(JSON.stringify(id, Object.keys(id).sort()))?.getBoundingClientRect() ?? { top: 0, left: 0 };
    return (frame.top < -innerHeight ? 1e6 - frame.top : frame.top) + frame.left / 1e4;
  };
  const painted = (then) => (document.hidden ? setTimeout(then) : requestAnimationFrame(() => setTimeout(then)));
  const next = () => {
    busy = waiting.length > 0;
    if (!busy) return;
    const first = waiting.reduce((a, b) => (order(b) < order(a) ? b : a));
    waiting.splice(waiting.indexOf(first), 1);
    first.resolve();
    painted(next);
  };
  return (id) => new Promise((resolve) => { waiting.push({ id, resolve }); if (!busy) { busy = true; setTimeout(next, GATHER); } });
})();

window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.geometry = {
  scheme: (stored) => window.geometry.resolve(stored),
  draw: async (figure, stored, look) => {
    if (!figure) return window.dash_clientside.no_update;
    const { id } = window.dash_clientside.callback_context.outputs_list;
    await window.geometry.turn(id);
    const dark = window.geometry.resolve(stored) === "dark";
    const walk = (node) => {
      if (typeof node === "string") return dark && node.length === 7 && node[0] === "#" ? (look.dark[node.toLowerCase()] ?? node) : node;
      if (Array.isArray(node)) return node.map(walk);
      if (!node || typeof node !== "object" || "bdata" in node) return node;
      return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, walk(value)]));
    };
    const { data, layout } = walk({ ...figure, layout: { ...figure.layout, template: look.template } });
    return { namespace: "dash_core_components", type: "Graph", props: { ...look.graph, id: { type: "graph", key: id.key }, figure: { data, layout } } };
  },
};
