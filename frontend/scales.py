"""From values and their null to one colour scale for all sides of a figure, flat where chance is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontend import theme
from frontend.answer import Answer
from frontend.words import number

MOST = 0.75
ROOM = (0.25, 0.65)
"""Where on the scale the null's name has room beside the names of both ends."""
LOG_ENDS = ((-2.0, "¼×"), (-1.0, "½×"), (0.0, "1×"), (1.0, "2×"), (2.0, "4×"))


@dataclass(frozen=True)
class Scale:
    """A colour scale: range in drawn units, stops, ticks, and whether values are drawn as log₂ ratios."""

    title: str
    low: float
    high: float
    stops: tuple[tuple[float, str], ...]
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def drawn(self, values: np.ndarray) -> np.ndarray:
        """Values in drawn units, clipped to the range so that no cell leaves the scale; NaN stays NaN."""
        if self.log:
            with np.errstate(divide="ignore"):
                values = np.log2(values)
        return np.clip(values, self.low, self.high).astype(np.float32)

    def heatmap(self) -> dict:
        """The keywords of a plotly heatmap."""
        return {
            "zmin": self.low,
            "zmax": self.high,
            "colorscale": theme.plotly_scale(list(self.stops)),
            "showscale": False,
        }


def scale_of(answers: Sequence[Answer], difference: bool = False, other: str = "B") -> Scale:
    """The scale that suits the values of all answers at once; a difference is what `other` has more than A."""
    values = np.concatenate([v[np.isfinite(v)].ravel() for v in map(without_self, answers)])
    if not len(values):
        return Scale("no value", 0.0, 1.0, tuple(theme.magnitude()), ())
    band = _band(answers)
    title = answers[0].unit.split(" (")[0]
    if difference:
        return _symmetric(other, values, band)
    if band and " over " in title and abs(band[1] - 1) < 1e-9 and values.min() >= 0:
        return _ratio(title, values, band)
    if band and _two_ways(values, band):
        return _signed(title, values, band)
    return _magnitude(title, values, band)


def without_self(answer: Answer) -> np.ndarray:
    """A thing against itself is 1 by definition: a constant diagonal must not stretch the scale."""
    values = answer.values
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 3:
        return values
    diagonal, alone = np.diagonal(values, axis1=-2, axis2=-1), np.eye(values.shape[-1], dtype=bool)
    if not np.isfinite(diagonal).any() or np.nanmax(diagonal) - np.nanmin(diagonal) > 1e-6:
        return values
    return np.where(alone, np.nan, values) if np.isfinite(values[..., ~alone]).any() else values


def _band(answers: Sequence[Answer]) -> tuple[float, float, float] | None:
    nulls = [a.null for a in answers if a.null is not None]
    if not nulls:
        return None
    means = [
        float(np.nanmean(part))
        for n in nulls[:1]
        for part in (n.low, n.high if n.mean is None else n.mean, n.high)
        if np.isfinite(part).any()
    ]
    return (means[0], means[1], means[2]) if len(means) == 3 else None


def _two_ways(values: np.ndarray, band: tuple[float, float, float]) -> bool:
    """Whether chance lies inside the values: at zero with both signs, or with a good part beyond it on either side."""
    around_zero = abs(band[1]) <= 0.1 * float(np.abs(values).max()) and values.min() < 0 < values.max()
    return around_zero or min(float(np.mean(values < band[0])), float(np.mean(values > band[2]))) > 0.1


def _symmetric(other: str, values: np.ndarray, band: tuple[float, float, float] | None) -> Scale:
    centre = band[1] if band and abs(band[1]) > 1e-9 else 0.0
    reach = max(float(np.abs(values - centre).max()), 1e-9)
    if band:
        reach = max(reach, 1.25 * max(band[2] - centre, centre - band[0]))
    low, high = centre - reach, centre + reach
    ends = (band[0], band[2]) if band else (centre, centre)
    stops = theme.beyond_null("dif", (ends[0] - low) / (2 * reach), (ends[1] - low) / (2 * reach))
    middle = "within chance" if band else number(centre)
    ticks = ((low, f"A {number(reach)}"), (centre, middle), (high, f"{other} {number(reach)}"))
    return Scale(f"{other} − A", low, high, tuple(stops), ticks)


def _ratio(title: str, values: np.ndarray, band: tuple[float, float, float]) -> Scale:
    largest = float(np.log2(max(values.max(), 1 / max(values.min(), 1e-3))))
    span = 1.0 if largest <= 1 else 2.0 if largest <= 2.5 else 3.0
    low, high = np.log2(max(band[0], 1e-3)), np.log2(max(band[2], 1e-3))
    stops = theme.beyond_null("sig", (low + span) / (2 * span), (high + span) / (2 * span))
    ends = LOG_ENDS if span == 2 else LOG_ENDS[1:-1] if span == 1 else ((-3.0, "⅛×"), *LOG_ENDS[1:-1], (3.0, "8×"))
    return Scale(title, -span, span, tuple(stops), ends, log=True)


def _signed(title: str, values: np.ndarray, band: tuple[float, float, float]) -> Scale:
    low, high = float(values.min()), float(values.max())
    stops = theme.beyond_null("sig", (band[0] - low) / (high - low), (band[2] - low) / (high - low))
    return Scale(title, low, high, tuple(stops), ((low, number(low)), (band[1], "null"), (high, number(high))))


def _magnitude(title: str, values: np.ndarray, band: tuple[float, float, float] | None) -> Scale:
    low, high = float(values.min()), float(values.max())
    ticks = [(low, number(low)), (high, number(high))]
    if band and low - 0.5 * (high - low) <= band[1] < high:
        named = (band[1], f"null {number(band[1])}")
        if np.mean(values > band[1]) > MOST:  # colour begins at chance; what little lies below takes its colour
            low, ticks = band[1], [named, ticks[1]]
        elif ROOM[0] < (band[1] - low) / (high - low) < ROOM[1]:
            ticks.insert(1, named)
    if high <= low:
        high = low + 1e-9 + abs(low) * 1e-6
    return Scale(title, low, high, tuple(theme.magnitude()), tuple(ticks))
