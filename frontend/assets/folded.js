// The content of a closed menu stands in `data-folded` as a tree of components; it becomes elements when the menu is opened. Text is set as
// text, never as HTML.
(() => {
  const NAMES = { className: "class", tabIndex: "tabindex", htmlFor: "for" };
  const field = (props) => {
    const frame = document.createElement("div"), input = document.createElement("input");
    frame.className = `dash-input-container ${props.className ?? ""}`;
    for (const name of ["type", "placeholder", "value"]) if (props[name] !== undefined) input.setAttribute(name, props[name]);
    frame.append(input);
    return frame;
  };
  const element = ({ type, props }) => {
    if (type === "Input") return field(props);
    const made = document.createElement(type);
    for (const [name, value] of Object.entries(props)) if (name !== "children" && value != null) made.setAttribute(NAMES[name] ?? name, value);
    fill(made, props.children);
    return made;
  };
  const fill = (parent, children) => {
    for (const child of [children].flat()) if (child != null) parent.append(typeof child === "object" ? element(child) : String(child));
  };
  const unfold = (details) => {
    for (const frame of details.querySelectorAll(":scope > [data-folded]")) {
      if (frame.unfolded === frame.dataset.folded) continue;
      frame.replaceChildren();
      fill(frame, JSON.parse(frame.unfolded = frame.dataset.folded));
    }
  };
  window.geometry = window.geometry || {};
  window.geometry.unfold = unfold;
  // before the disclosure opens, so that nothing is ever seen empty; keys (Enter, Space) arrive as clicks too
  document.addEventListener("click", (event) => { const head = event.target.closest?.("summary"); if (head) unfold(head.parentElement); }, true);
})();
