"""Comparisons as one HTML file that opens offline: `python -m frontend.report FILE` with one on stdin.

It holds plotly.js, the figures in both colour schemes, and beside each what stands under a figure on a page. Names and
texts that came from somebody else are escaped; nothing is fetched.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frontend import plotlyjs, theme
from frontend.answer import Answer, Band, decode_json
from frontend.beyond import LEVEL
from frontend.figure import height_of, sent
from frontend.folded import told
from frontend.readings import sentence
from frontend.views import Side, draw
from frontend.words import number

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{tokens}{style}</style></head>
<body><main>{parts}<footer><p>Made by</p><pre>{command}</pre></footer></main>
<script>{plotly}</script><script id="figures" type="application/json">{figures}</script>
<script>{script}</script></body></html>
"""
STYLE = """body{margin:0;background:var(--canvas);color:var(--ink);font:13px/20px Inter,system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px}h1{font-size:20px;margin:0 0 4px}h2{font-size:14px;margin:0}
section{background:var(--surface);border:1px solid var(--line);border-radius:8px;padding:12px 16px;margin:0 0 16px}
.lead,.reading{color:var(--ink-2);margin:0 0 12px}.facts{color:var(--ink-3);font-size:11px;margin:8px 0 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);font-weight:400;vertical-align:top}
pre{white-space:pre-wrap;word-break:break-word;background:var(--sunken);padding:8px;border-radius:6px}"""
SCRIPT = """const look = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const hex = (text) => text.length === 7 && text[0] === "#";
const colour = (text) => (dark.matches && hex(text) ? look.dark[text.toLowerCase()] ?? text : text);
const walk = (node) => {
  if (typeof node === "string") return colour(node);
  if (Array.isArray(node)) return node.map(walk);
  if (!node || typeof node !== "object" || "bdata" in node) return node;
  return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, walk(value)]));
};
const paint = () => {
  document.documentElement.dataset.mantineColorScheme = dark.matches ? "dark" : "light";
  look.figures.forEach(({ data, layout }, at) => {
    const figure = walk({ data, layout: { ...layout, template: look.template } });
    Plotly.react("figure-" + at, figure.data, figure.layout, { displaylogo: false, responsive: true });
  });
};
dark.addEventListener("change", paint);
paint();"""


def build(compared: Mapping[str, Any]) -> str:
    """The whole file, from what `moe-geometry compare --json` prints; `answer` may stand for the JSON of one."""
    figures: list[Any] = []
    parts = [_part(each, compared["prompts"], figures) for each in compared["pairs"]]
    look = {"figures": figures, "template": theme.TEMPLATE, "dark": theme.pairs()}
    return PAGE.format(
        title=_safe(f"{compared['pairs'][0]['a']} and {', '.join(each['b'] for each in compared['pairs'])}"),
        tokens=theme.css(),
        style=STYLE,
        parts="".join(parts),
        command=_safe(f"{compared['command']} --report FILE.html"),
        plotly=plotlyjs.text(),
        figures=told(look).replace("<", "\\u003c"),  # a label cannot end the script
        script=SCRIPT,
    )


def _part(pair: Mapping[str, Any], prompts: str, figures: list[Any]) -> str:
    """One pair: its names, which expert is which, every difference."""
    title = _safe(f"{pair['a']} and {pair['b']}")
    lead = _safe(f"a is {pair['a']}, b is {pair['b']}, on the prompts {prompts}.")
    plates = [_plate(each, figures) for each in (pair["matching"], *pair["differences"])]
    return f'<h1>{title}</h1><p class="lead">{lead}</p>{_matching(pair["matching"])}{"".join(plates)}'


def _answer(told: Mapping[str, Any]) -> Answer:
    return told["answer"] if "answer" in told else decode_json(told)


def _plate(told: Mapping[str, Any], figures: list[Any]) -> str:
    title = f"<h2>{_safe(told['title'])}</h2>"
    if "refused" in told:
        return f'<section>{title}<p class="reading">Not compared: {_safe(told["refused"])}</p></section>'
    answer = _answer(told)
    side = Side("ab", "a and b", answer)
    figure, _ = draw([side], difference="b - a" in answer.unit)
    frame = f'<div id="figure-{len(figures)}" style="height:{height_of(figure)}px"></div>'
    figures.append(sent(figure))
    reading = f'<p class="reading">{_safe(sentence([side]))}</p>'
    return f"<section>{title}{reading}{frame}{_facts(told, answer)}</section>"


def _facts(told: Mapping[str, Any], answer: Answer) -> str:
    tokens = f"{answer.tokens:,} tokens, {answer.prompts:,} prompts" if answer.tokens else "reads weights only"
    interval = f"interval: {answer.interval.how}" if answer.interval else f"no interval: {answer.interval_reason}"
    null = f"null: {answer.null.how}" if answer.null else f"no null: {answer.null_reason}"
    beyond = _beyond(answer.null)
    own = [f"{name} {number(v) if isinstance(v, float) else v}" for name, v in answer.facts.items()]
    parts = [answer.unit, tokens, null, beyond, interval, *own, told.get("source"), told.get("caveat"), *answer.caveats]
    made = [f"{name} {value}" for name, value in answer.provenance.items() if isinstance(value, str | int | float)]
    lines = (" · ".join(_safe(part) for part in each if part) for each in (parts, made))
    return "".join(f'<p class="facts">{line}</p>' for line in lines)


def _beyond(null: Band | None) -> str:
    """How many layers or cells differ from chance; their p stand in the JSON."""
    if null is None or null.p is None:
        return ""
    known = null.p[np.isfinite(null.p)]
    return f"p at or below {LEVEL}, corrected for all: {int((known <= LEVEL).sum())} of {len(known)}"


def _matching(told: Mapping[str, Any]) -> str:
    if "refused" in told:
        return ""
    answer, rows = _answer(told), []
    layers, first, second = (axis.labels for axis in answer.axes)
    for layer, likeness in zip(layers, answer.values, strict=True):
        known = np.isfinite(likeness)
        if (known.sum(-1) > 1).any():
            return ""  # all pairs: nobody asked who is whose match
        to = [second[row.argmax()] if row.any() else "none" for row in known]
        quality = number(float(likeness[known].mean())) if known.any() else "no data"
        pairs = ", ".join(f"{a} → {b}" for a, b in zip(first, to, strict=True))
        rows.append(f"<tr><th>{_safe(layer)}</th><td>{quality}</td><td>{_safe(pairs)}</td></tr>")
    head = "<tr><th>layer</th><th>mean likeness of matched pairs</th><th>expert of a → expert of b</th></tr>"
    return f"<section><h2>Which expert is which</h2><table>{head}{''.join(rows)}</table></section>"


def _safe(text: Any) -> str:
    return html.escape(str(text))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(build(json.load(sys.stdin)), "utf-8")
