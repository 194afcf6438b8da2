// Light and dark without the server: figures arrive in light colours and are recoloured here.
window.geometry = window.geometry || {};
window.geometry.resolve = (stored) =>
  new URLSearchParams(location.search).get("theme") || stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.geometry = {
  scheme: (stored) => window.geometry.resolve(stored),
  recolour: (figure, stored, palette) => {
    if (!figure) return window.dash_clientside.no_update;
    const dark = window.geometry.resolve(stored) === "dark";
    const walk = (node) => {
      if (typeof node === "string") return dark && node.length === 7 && node[0] === "#" ? (palette[node.toLowerCase()] ?? node) : node;
      if (Array.isArray(node)) return node.map(walk);
      if (!node || typeof node !== "object" || "bdata" in node) return node;
      return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, walk(value)]));
    };
    return walk(figure);
  },
};
