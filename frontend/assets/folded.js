// Trees of components told as text become elements here: plates at once, the content of a closed menu (`data-folded`) when it is opened. Text
// is set as text, never as HTML. Where a tree is told anew, the elements that still fit stay, with their focus and what is open or drawn in them.
(() => {
  const geometry = (window.geometry = window.geometry || {});
  const NAMES = { className: "class", tabIndex: "tabindex", htmlFor: "for" };
  const list = (children) => [children].flat().filter((child) => child != null);
  const field = (props) => {
    const frame = document.createElement("div"), input = document.createElement("input");
    frame.className = `dash-input-container ${props.className ?? ""}`;
    for (const name of ["type", "placeholder", "value"]) if (props[name] !== undefined) input.setAttribute(name, props[name]);
    frame.append(input);
    frame.told = props;
    return frame;
  };
  const write = (node, props) => {
    for (const name of Object.keys(node.told ?? {})) if (props[name] == null && name !== "children") node.removeAttribute(NAMES[name] ?? name);
    for (const [name, value] of Object.entries(props)) {
      if (value == null || name === "children" || value === node.told?.[name]) continue;
      if (name === "style") { node.removeAttribute("style"); Object.assign(node.style, value); }
      else node.setAttribute(NAMES[name] ?? name, value);
    }
    // what is told without children may have been filled by others, and is left alone
    if (props.children != null || node.told?.children != null) fit(node, props.children);
    node.told = props;
    return node;
  };
  const made = (child) => {
    if (typeof child !== "object") return document.createTextNode(String(child));
    const { type, props } = child, node = type === "Input" ? field(props) : write(document.createElement(type), props);
    node.kind = type;
    return node;
  };
  const framed = (props) => /^figure\b/.test(props?.className);
  // tells an element that is there already what it is to be; false where it cannot be that
  const again = (node, child) => {
    if (typeof child !== "object") return node.nodeType === Node.TEXT_NODE && ((node.data = String(child)), true);
    if (node.kind !== child.type || framed(node.told) !== framed(child.props)) return false;
    if (child.type !== "Input") return write(node, child.props);
    if (node.told.value !== child.props.value) node.firstChild.value = child.props.value;
    node.told = child.props;
    return true;
  };
  const fit = (parent, children) => {
    const told = list(children);
    told.forEach((child, place) => {
      const at = parent.childNodes[place] ?? null;
      const node = framed(child.props) ? [...parent.childNodes].find((n) => framed(n.told)) ?? at : at; // what is drawn is kept where it moves
      if (node && again(node, child)) { if (node !== at) parent.insertBefore(node, at); }
      else if (at && !framed(at.told)) at.replaceWith(made(child));
      else parent.insertBefore(made(child), at);
    });
    while (parent.childNodes.length > told.length) parent.lastChild.remove();
  };
  geometry.fit = fit;
  geometry.unfold = (details) => {
    for (const frame of details.querySelectorAll(":scope > [data-folded]")) {
      if (frame.unfolded === frame.dataset.folded) continue;
      frame.replaceChildren();
      fit(frame, JSON.parse(frame.unfolded = frame.dataset.folded));
    }
  };
  // before the disclosure opens, so that nothing is ever seen empty; keys (Enter, Space) arrive as clicks too
  document.addEventListener("click", (event) => { const head = event.target.closest?.("summary"); if (head) geometry.unfold(head.parentElement); }, true);
})();
