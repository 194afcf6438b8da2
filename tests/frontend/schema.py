"""Figures held to plotly's own schema: a property it does not know or a value it refuses fails the test."""

from __future__ import annotations

import json

import plotly.graph_objects as go

from frontend import theme
from frontend.figure import Figure, sent
from frontend.views import draw


def checked(figure: Figure) -> go.Figure:
    """The same figure in plotly's classes, in the product's template; as it is sent it is strict JSON."""
    layout = figure["layout"] | {"template": theme.TEMPLATE}
    json.dumps(sent(figure), allow_nan=False)
    return go.Figure(figure | {"layout": layout}, skip_invalid=False)


def drawn(*sides, **more):
    """A view's figure and scale, the figure checked."""
    figure, scale = draw(*sides, **more)
    return checked(figure), scale
