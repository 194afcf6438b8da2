"""Every colour, size and scale of the product, once: CSS variables, the Mantine theme, the Plotly template.

Hue belongs to data and the interface is ink; blue and orange are checkpoints A and B and nothing else; colour begins
where chance ends. Figures are always built in the light colours: the browser swaps them for the dark ones (`pairs`), so
the switch asks no server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SANS = "Inter Variable, Inter, system-ui, -apple-system, Segoe UI, sans-serif"
MONO = "JetBrains Mono Variable, ui-monospace, SF Mono, Menlo, monospace"

_TEXT = (
    ("canvas", "#F7F7F4", "#0F1115"),
    ("surface", "#FFFFFF", "#16191F"),
    ("sunken", "#F0F0EC", "#1D2128"),
    ("line", "#E4E4DE", "#282D36"),
    ("line-strong", "#C6C6BE", "#444B57"),
    ("ink", "#17191E", "#ECEEF2"),
    ("ink-2", "#474D58", "#B9BFCA"),
    ("ink-3", "#646B78", "#9098A6"),
    ("null", "#8B8F98", "#7D8593"),
    ("null-fill", "#E9E9E5", "#2B313B"),
    ("a", "#1565B5", "#6DB1F5"),
    ("b", "#B8500A", "#F29B57"),
    ("error", "#B3261E", "#F2938C"),
    ("error-soft", "#FBEAE8", "#3B1D1B"),
    ("warn", "#7A5600", "#E3B95A"),
    ("warn-soft", "#FBF2DC", "#352A12"),
)
# prompt categories: marks, and the same as words at 4.5 : 1
_CATEGORIES = (
    ("mark-code", "#00979B", "#6BE3B8"),
    ("mark-mathematics", "#403692", "#D3A6F7"),
    ("mark-story", "#A3153F", "#BC6A92"),
    ("mark-fact", "#AD8400", "#8F9A2A"),
    ("cat-code", "#00757A", "#6BE3B8"),
    ("cat-mathematics", "#403692", "#D3A6F7"),
    ("cat-story", "#A3153F", "#BC6A92"),
    ("cat-fact", "#7D6000", "#8F9A2A"),
)
# experts: eight hues, then the same again; the number in words tells those of one hue apart
_FAMILIES = (
    ("family-0", "#332288", "#8F84D6"),
    ("family-1", "#88CCEE", "#9FEAF2"),
    ("family-2", "#44AA99", "#2C8284"),
    ("family-3", "#117733", "#67862F"),
    ("family-4", "#999933", "#B3B02C"),
    ("family-5", "#DDCC77", "#FFE39A"),
    ("family-6", "#CC6677", "#F3977B"),
    ("family-7", "#882255", "#DCA6B0"),
)
# mag, magnitude: how much; lightness alone carries it. sig, signed: beyond the null, in which direction.
# dif, difference: only ever B minus A.
_RAMPS = {
    "mag": (
        "#F5F4EF #D6DFDC #A9C0C6 #7199AF #416F95 #214873 #0E2347",
        "#1A1E25 #233447 #2E506E #417394 #6699B4 #9CC3D1 #E4F3F3",
    ),
    "sig": (
        "#4A2A78 #8867B0 #C9B8DC #F1F1ED #A9D3C6 #3F9984 #045446",
        "#D9C6F5 #9576C4 #48386A #20252D #1F5249 #3E9F8B #B9EBDD",
    ),
    "dif": (
        "#0B3F78 #3F86CB #B5D2EE #F1F1ED #F3CDAE #D97B33 #7D3404",
        "#CFE5FC #5FA3E6 #254A70 #20252D #6B3F1B #DD8743 #FCE0C6",
    ),
}


def _tokens(dark: bool) -> dict[str, str]:
    flat = {name: (light, night)[dark] for name, light, night in (*_TEXT, *_CATEGORIES, *_FAMILIES)}
    for name, both in _RAMPS.items():
        flat |= {f"{name}-{i}": colour for i, colour in enumerate(both[dark].split())}
    return flat


LIGHT, DARK = _tokens(False), _tokens(True)

_HUES = ("code", "mathematics", "story", "fact")
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "x", "star", "hexagon", "triangle-down", "pentagon")


@dataclass(frozen=True)
class CategoryStyle:
    """How a prompt category is drawn: hue and marker shape, so that either alone suffices; `word` colours its name."""

    mark: str
    word: str
    shape: str
    token: str


def categories(names: tuple[str, ...]) -> dict[str, CategoryStyle]:
    """Styles by category.

    The four shipped ones keep their own; beyond four, new shapes with the same hues again, never a fifth hue. Numbers
    (layers) are an order, not kinds: they go from light to dark.
    """
    if len(names) > 1 and all(name.isdigit() for name in names):
        return _ordered(names)
    ordered = [n for n in dict.fromkeys(names) if n not in _HUES]
    taken = [n for n in _HUES if n in names]
    places = {name: _HUES.index(name) for name in taken}
    free = [i for i in range(len(_SHAPES)) if i not in places.values()]
    places |= {name: free[i % len(free)] for i, name in enumerate(ordered)}
    return {
        name: CategoryStyle(
            LIGHT[f"mark-{_HUES[i % 4]}"], LIGHT[f"cat-{_HUES[i % 4]}"], _SHAPES[i], f"cat-{_HUES[i % 4]}"
        )
        for name, i in places.items()
    }


def _ordered(names: tuple[str, ...]) -> dict[str, CategoryStyle]:
    ranks = {name: i / (len(names) - 1) for i, name in enumerate(sorted(names, key=int))}
    tokens = {name: f"mag-{2 + round(4 * rank)}" for name, rank in ranks.items()}
    return {name: CategoryStyle(LIGHT[t], LIGHT["ink-2"], _SHAPES[0], t) for name, t in tokens.items()}


def pairs() -> dict[str, str]:
    """Light hex to dark hex, for the browser's recolouring of a finished figure."""
    return {LIGHT[name].lower(): DARK[name] for name in LIGHT}


def magnitude() -> list[tuple[float, str]]:
    """Stops of the magnitude ramp as (position, token)."""
    return [(i / 6, f"mag-{i}") for i in range(7)]


def beyond_null(ramp: str, low: float, high: float) -> list[tuple[float, str]]:
    """Stops of a diverging ramp (`sig` or `dif`), neutral between the positions `low` and `high` in [0, 1]."""
    left, right = min(max(low, 0.0), 1.0), max(min(high, 1.0), 0.0)
    below = [(left * i / 3, f"{ramp}-{i}") for i in range(3)] if left > 0 else []
    above = [(right + (1 - right) * (i + 1) / 3, f"{ramp}-{i + 4}") for i in range(3)] if right < 1 else []
    return [*below, (left, f"{ramp}-3"), (right, f"{ramp}-3"), *above]


def plotly_scale(stops: list[tuple[float, str]]) -> list[list]:
    """Stops in the form plotly takes; it wants the ends at exactly 0 and 1."""
    scale = [[at, LIGHT[token]] for at, token in stops]
    scale[0][0], scale[-1][0] = 0.0, 1.0
    return scale


def css_gradient(stops: list[tuple[float, str]]) -> str:
    """The same stops as a CSS gradient of variables, so that the bar follows the theme."""
    return "linear-gradient(90deg," + ",".join(f"var(--{token}) {at * 100:.1f}%" for at, token in stops) + ")"


def css() -> str:
    """All tokens as CSS variables for both colour schemes."""
    light, dark = ("".join(f"--{k}:{v};" for k, v in tokens.items()) for tokens in (LIGHT, DARK))
    return f":root{{{light}color-scheme:light}}:root[data-mantine-color-scheme=dark]{{{dark}color-scheme:dark}}"


def _template() -> dict[str, Any]:
    t = LIGHT
    axis = {
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "linecolor": t["line-strong"],
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": t["line-strong"],
        "tickfont": {"size": 11, "color": t["ink-3"]},
        "title": {"font": {"size": 11, "color": t["ink-2"]}, "standoff": 6},
        "automargin": False,
    }
    layout = {
        "font": {"family": SANS, "size": 11, "color": t["ink-2"]},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": axis,
        "yaxis": axis,
        "margin": {"l": 48, "r": 16, "t": 16, "b": 38},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": t["ink"],
            "bordercolor": t["ink"],
            "font": {"family": SANS, "size": 12, "color": t["surface"]},
        },
        "dragmode": "select",
    }
    return {"layout": layout}


TEMPLATE = _template()
"""What lies under every figure; the browser keeps it once for all of them."""
MANTINE: Any = {
    "fontFamily": SANS,
    "fontFamilyMonospace": MONO,
    "primaryColor": "dark",
    "primaryShade": {"light": 8, "dark": 2},
    "autoContrast": True,
    "defaultRadius": 6,
    "focusRing": "auto",
    "cursorType": "pointer",
    "fontSizes": {"xs": "11px", "sm": "13px", "md": "13px", "lg": "14px", "xl": "20px"},
    "headings": {"fontFamily": SANS, "fontWeight": "600"},
}
