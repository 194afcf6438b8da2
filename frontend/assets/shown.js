// Panels are looked up when they stand on the page: those in sight at once, the others a moment later, so that nothing below the fold holds
// up what is read first. (Dash would send all of them in one burst, and draw nothing whose callback is still out.)
(() => {
  const LATER = 120;
  const told = new Map();
  const look = () => {
    for (const plate of told.keys()) if (!plate.isConnected || plate.dataset.state !== "loading") told.delete(plate);
    for (const plate of document.querySelectorAll('.plate[data-state="loading"]')) {
      if (told.get(plate) === plate.dataset.key) continue;
      const key = plate.dataset.key, frame = plate.getBoundingClientRect();
      told.set(plate, key);
      const seen = frame.top < innerHeight && frame.bottom > 0;
      setTimeout(() => { if (told.get(plate) === key) window.dash_clientside.set_props({ type: "shown", key }, { data: Date.now() }); }, seen ? 0 : LATER);
    }
  };
  let pending = 0;
  const soon = () => { clearTimeout(pending); pending = setTimeout(look, 5); };
  const start = () => new MutationObserver(soon).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-state", "data-key"] });
  document.body ? start() : document.addEventListener("DOMContentLoaded", start);
})();
