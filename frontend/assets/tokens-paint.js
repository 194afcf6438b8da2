// The tokens page, drawn: tokens with their experts, the token in hand, and the sentence as a score. Text is set, never parsed.
(() => {
  const geometry = (window.geometry = window.geometry || {}), tokens = (geometry.tokens ??= {});
  const HUES = 8, ROW = [6, 14], COLUMN = [6, 26], LEFT = 40, RIGHT = 96, GAP = 12, LABELS = 74, BARS = 44;
  const el = (id) => document.getElementById(id);
  const make = (name, className, text) => { const node = document.createElement(name); if (className) node.className = className; if (text !== undefined) node.textContent = text; return node; };
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const same = (state) => state.sides.a === state.sides.b;

  // hue by A's number: an expert of B has that of its partner, none if it has no partner
  const hue = (state, side, layer, expert) => {
    if (expert === null) return null;
    if (side === "a" || same(state) || !state.matched) return expert % HUES;
    const partner = state.matched[layer]?.indexOf(expert) ?? -1;
    return partner < 0 ? null : partner % HUES;
  };
  const slots = (answer, layer, token) => answer.indices[layer][token]
    .map((expert, slot) => ({ expert, weight: answer.weights[layer][token][slot] }))
    .filter((s) => s.expert !== null && s.weight !== null).sort((x, y) => y.weight - x.weight);
  const first = (answer, layer, token) => slots(answer, layer, token)[0] ?? { expert: null, weight: 0 };
  const fill = (h) => (h === null ? "var(--null-fill)" : `var(--family-${h})`);
  const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const shown = (piece) => piece.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "→");
  const at = (state, answer) => [Math.min(state.layer, answer.layers.length - 1), Math.min(state.token, answer.tokens.length - 1)];

  const doubt = (answer, layer, token) => `entropy ${number(answer.entropy[layer][token], 2)} of ${Math.log(answer.experts).toFixed(2)} nats, margin ${number(answer.margins[layer][token])}`;
  const served = (answer, layer, token) => slots(answer, layer, token).slice(0, 5).map((s) => `E${s.expert} ${number(s.weight, 2)}`).join(", ") || "no expert";
  tokens.words = (state, side) => {
    const answer = state.answers[side];
    if (!answer) return "";
    const [layer, token] = at(state, answer);
    return `${side.toUpperCase()}, layer ${answer.layers[layer]}, token ${token + 1} of ${answer.tokens.length} “${answer.tokens[token].piece}”: ${served(answer, layer, token)}; ${doubt(answer, layer, token)}`;
  };

  const token = (state, side, answer, layer, index) => {
    const told = answer.tokens[index], here = index === Math.min(state.token, answer.tokens.length - 1);
    const node = make("span", "token" + (told.role === "generated" ? " generated" : "") + (here ? " here" : ""));
    node.id = `token-${side}-${index}`;
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", String(here));
    node.dataset.act = "pick-token"; node.dataset.at = index;
    const all = slots(answer, layer, index), best = all[0];
    node.style.setProperty("--hue", fill(best ? hue(state, side, layer, best.expert) : null));
    node.title = `${served(answer, layer, index)}; ${doubt(answer, layer, index)}`;
    node.append(make("span", "piece", shown(told.piece)));
    // a gradient, not an element for each part: styles of four hundred tokens are what a reader waits for
    const bar = make("span", "token-bar"), parts = [];
    let from = 0;
    for (const s of all.slice(0, 3)) {
      const to = from + Math.min(1, s.weight) * 100;
      parts.push(`${fill(hue(state, side, layer, s.expert))} ${from}% ${to}%`);
      from = to;
    }
    bar.style.backgroundImage = `linear-gradient(to right, ${[...parts, `var(--sunken) ${from}%`].join(", ")})`;
    node.append(bar);
    return node;
  };
  const bars = (place, rows, colour) => place.replaceChildren(...rows.map(([name, value, fillOf]) => {
    const row = make("div", "token-row"), track = make("span", "track"), part = make("i");
    part.style.width = `${Math.min(1, value) * 100}%`;
    part.style.background = fillOf ?? colour;
    track.append(part);
    row.append(make("span", "mono clip", name), track, make("span", "num", number(value, 2)));
    return row;
  }));
  const side = (state, letter) => {
    const answer = state.answers[letter], list = el(`tokens-${letter}`);
    if (!list) return;
    el(`tokens-name-${letter}`).textContent = state.sides[letter] ?? "no checkpoint";
    const trouble = state.trouble[letter];
    el(`tokens-trouble-${letter}`).replaceChildren(...(trouble ? [make("div", "trouble", trouble)] : []));
    list.classList.toggle("greyed", Boolean(trouble));
    el(`tokens-time-${letter}`).textContent = answer ? `${answer.random_weights ? "random weights · " : ""}${Math.round(answer.seconds * 1000)} ms on ${answer.device}` : "";
    if (!answer) { list.replaceChildren(); for (const part of ["experts", "next"]) el(`tokens-${part}-${letter}`).replaceChildren(); return; }
    const [layer, here] = at(state, answer);
    list.replaceChildren(...answer.tokens.map((_, index) => token(state, letter, answer, layer, index)));
    list.setAttribute("aria-activedescendant", `token-${letter}-${here}`);
    bars(el(`tokens-experts-${letter}`), slots(answer, layer, here).slice(0, 5).map((s) => [`E${s.expert}`, s.weight, fill(hue(state, letter, layer, s.expert))]));
    el(`tokens-experts-${letter}`).append(make("div", "t-note ink-3", doubt(answer, layer, here)));
    const next = answer.following[here] ?? [];
    bars(el(`tokens-next-${letter}`), next.map((n) => [shown(n.piece), n.probability]), `var(--${letter})`);
    if (!next.length) el(`tokens-next-${letter}`).append(make("div", "t-note ink-3", "this model predicts no token"));
    for (const note of answer.notes) el(`tokens-trouble-${letter}`).append(make("div", "caution", note));
  };

  // Tokens of A that B has too: the same characters of the text; what is written behind it, as long as both write the same.
  const aligned = ({ a, b }) => {
    const found = new Map(), places = new Map(b.tokens.map((t, index) => [String(t.span), index]).filter(([span]) => span !== "null"));
    a.tokens.forEach((t, index) => { if (t.span && places.has(String(t.span))) found.set(index, places.get(String(t.span))); });
    const written = (answer) => answer.tokens.map((t, index) => [t, index]).filter(([t]) => t.role === "generated");
    const others = written(b);
    for (const [place, [t, index]] of written(a).entries()) {
      if (others[place]?.[0].piece !== t.piece) break;
      found.set(index, others[place][1]);
    }
    return found;
  };
  const partner = (state, layer, expert) => (same(state) ? expert : state.matched ? state.matched[layer]?.[expert] ?? -1 : null);
  const agreement = (state) => {
    const { a, b } = state.answers;
    if (!a || !b || a.layers.length !== b.layers.length || (!same(state) && !state.matched)) return null;
    const both = aligned(state.answers), cells = new Map();
    for (const [mine, theirs] of both) cells.set(mine, a.layers.map((_, l) => partner(state, l, first(a, l, mine).expert) === first(b, l, theirs).expert));
    return { cells, back: new Map([...both].map(([x, y]) => [y, x])) };
  };

  const colours = () => Object.fromEntries(["surface", "sunken", "null-fill", "ink", "ink-2", "ink-3", "a", "b", ...Array.from({ length: HUES }, (_, i) => `family-${i}`)].map((n) => [n, ink(n)]));
  const cell = (state, letter, answer, layer, index, agreed, paint) => {
    const best = first(answer, layer, index), h = hue(state, letter, layer, best.expert);
    if (state.mode === "agreement") {
      const mine = letter === "a" ? index : agreed?.back.get(index), hits = agreed?.cells.get(mine);
      return hits ? [hits[layer] ? paint["ink-2"] : paint.sunken, 1] : [paint["null-fill"], 1];
    }
    if (state.mode === "this expert") {
      const [own, here] = at(state, state.answers.a ?? answer), chosen = first(state.answers.a ?? answer, own, here).expert;
      const wanted = letter === "a" ? chosen : partner(state, layer, chosen);
      const hit = slots(answer, layer, index).find((s) => s.expert === wanted);
      return hit ? [paint[`family-${chosen % HUES}`], 0.2 + 0.8 * Math.min(1, hit.weight)] : [paint.sunken, 1];
    }
    return h === null ? [paint["null-fill"], 1] : [paint[`family-${h}`], 0.25 + 0.75 * Math.min(1, best.weight)];
  };
  const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));
  const score = (state) => {
    const place = el("score"), there = ["a", "b"].filter((l) => state.answers[l]);
    if (!place) return;
    if (!there.length) { place.replaceChildren(); return; }
    const paint = colours(), agreed = agreement(state), most = Math.max(...there.map((l) => state.answers[l].tokens.length));
    const wide = clamp((place.parentElement.clientWidth - LEFT - RIGHT) / most, COLUMN);
    const tall = clamp(150 / Math.max(...there.map((l) => state.answers[l].layers.length)), ROW);
    const canvas = place.querySelector("canvas") ?? place.appendChild(document.createElement("canvas")), scale = devicePixelRatio || 1;
    const tops = [], labels = wide >= 11 ? LABELS : 8;
    let height = labels;
    for (const letter of there) { tops.push(height); height += state.answers[letter].layers.length * tall + GAP; }
    const width = LEFT + most * wide + RIGHT, total = height + (agreed ? BARS + 6 : 0);
    Object.assign(canvas, { width: width * scale, height: total * scale });
    Object.assign(canvas.style, { width: `${width}px`, height: `${total}px` });
    tokens.grid = { wide, tall, tops, there };
    const draw = canvas.getContext("2d");
    draw.scale(scale, scale);
    draw.font = "11px Inter Variable, Inter, sans-serif";
    there.forEach((letter, n) => rows(state, letter, tops[n], { draw, wide, tall, agreed, paint, labels: n ? 0 : labels }));
    if (agreed) columns(state, agreed, height, { draw, wide, paint });
    place.setAttribute("aria-label", `The sentence as a score. ${el("score-plate").querySelector(".reading").textContent}`);
  };
  const rows = (state, letter, top, { draw, wide, tall, agreed, paint, labels }) => {
    const answer = state.answers[letter], [own, here] = at(state, answer);
    answer.layers.forEach((name, layer) => {
      answer.tokens.forEach((_, index) => {
        const [colour, strength] = cell(state, letter, answer, layer, index, agreed, paint);
        draw.globalAlpha = strength; draw.fillStyle = colour;
        draw.fillRect(LEFT + index * wide, top + layer * tall, wide - 1, tall - 1);
      });
      draw.globalAlpha = 1;
      if (layer % Math.ceil(13 / tall) === 0) { draw.fillStyle = paint["ink-3"]; draw.textAlign = "right"; draw.fillText(name, LEFT - 6, top + layer * tall + Math.min(tall, 11)); }
    });
    draw.strokeStyle = paint.ink; draw.lineWidth = 1.5;
    draw.strokeRect(LEFT - 1, top + own * tall - 1, answer.tokens.length * wide + 1, tall + 1);
    draw.strokeRect(LEFT + here * wide - 1, top - 1, wide + 1, answer.layers.length * tall + 1);
    draw.textAlign = "left"; draw.fillStyle = paint[letter];
    draw.fillText(`${letter.toUpperCase()} ${state.sides[letter].split("/")[0]}`.slice(0, 15), LEFT + answer.tokens.length * wide + 6, top + 11);
    if (!labels) return;
    draw.fillStyle = paint["ink-2"]; draw.font = "11px JetBrains Mono Variable, monospace";
    answer.tokens.forEach((t, index) => {
      draw.save(); draw.translate(LEFT + index * wide + wide / 2 + 3, top - 6); draw.rotate(-0.9);
      draw.fillText(shown(t.piece).slice(0, 12), 0, 0); draw.restore();
    });
    draw.font = "11px Inter Variable, Inter, sans-serif";
  };
  const columns = (state, agreed, top, { draw, wide, paint }) => {
    for (const [index, hits] of agreed.cells) {
      const share = hits.filter(Boolean).length / hits.length;
      draw.fillStyle = paint.sunken; draw.fillRect(LEFT + index * wide, top, wide - 1, BARS);
      draw.fillStyle = paint["ink-2"]; draw.fillRect(LEFT + index * wide, top + BARS * (1 - share), wide - 1, BARS * share);
    }
    const chance = top + BARS * (1 - 1 / state.answers.a.experts);
    draw.strokeStyle = paint["ink-3"]; draw.setLineDash([3, 3]); draw.lineWidth = 1;
    draw.beginPath(); draw.moveTo(LEFT, chance); draw.lineTo(LEFT + state.answers.a.tokens.length * wide, chance); draw.stroke(); draw.setLineDash([]);
    draw.fillStyle = paint["ink-3"]; draw.textAlign = "left";
    draw.fillText("layers alike", LEFT + state.answers.a.tokens.length * wide + 6, top + 11);
    draw.fillText("dashed: chance", LEFT + state.answers.a.tokens.length * wide + 6, top + 25);
  };

  const reading = (state) => {
    const own = el("score-plate")?.querySelector(".reading");
    if (!own) return;
    const agreed = agreement(state), counts = (answer) => `${answer.tokens.length} tokens, ${answer.layers.length} layers`;
    const told = ["a", "b"].filter((l) => state.answers[l]).map((l) => `${l.toUpperCase()}: ${counts(state.answers[l])}.`);
    if (agreed) {
      const hits = [...agreed.cells.values()].flat(), share = hits.filter(Boolean).length / hits.length;
      if (hits.length) told.push(`The first expert is the same in ${(share * 100).toFixed(0)} % of ${hits.length} cells (tokens that both have); by chance ${(100 / state.answers.a.experts).toFixed(1)} %.`);
    }
    own.textContent = [...told, state.order ? `${state.order[0].toUpperCase()}${state.order.slice(1)}.` : ""].join(" ");
    const written = state.answers.a?.tokens.filter((t) => t.role === "generated").length ?? 0;
    el("typed-told").textContent = state.answers.a ? `${state.answers.a.tokens.length - written} tokens${written ? ` · ${written} generated, underlined` : ""} · layer ${state.answers.a.layers[at(state, state.answers.a)[0]]} (↑ ↓ in the tokens, or , .) · token (← →)` : "";
    document.querySelectorAll('[data-act="score-mode"]').forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.mode === state.mode)));
  };
  tokens.paint = (state) => { side(state, "a"); side(state, "b"); reading(state); score(state); };

  document.addEventListener("click", (event) => {
    const canvas = event.target.closest?.("#score canvas");
    if (!canvas || !tokens.grid) return;
    const { wide, tall, tops, there } = tokens.grid, x = event.offsetX - LEFT, state = tokens.state;
    const n = tops.findLastIndex((top) => event.offsetY >= top), answer = n >= 0 && state.answers[there[n]];
    if (!answer) return;
    const index = Math.floor(x / wide), layer = Math.floor((event.offsetY - tops[n]) / tall);
    if (index < 0 || index >= answer.tokens.length || layer < 0 || layer >= answer.layers.length) return;
    state.token = index; state.layer = layer;
    window.geometry.change({ layer });
    tokens.paint(state);
  });
})();
