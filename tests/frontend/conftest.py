"""The fake backend beside the app, in one process."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from frontend.answer import Answer, Axis, Band
from frontend.client import Client
from tests.frontend.fake_backend import create_fake


@pytest.fixture
def make_answer():
    """An answer with these values; null and interval by keyword."""

    def make(values, axes, **more):
        values = np.asarray(values, dtype=np.float64)
        settled = {
            "measure": "planted",
            "unit": "cosine (-1 to 1)",
            "null": None,
            "null_reason": "none here",
            "interval": None,
            "interval_reason": "none here",
            "caveats": (),
            "facts": {},
            "tokens": 5000,
            "prompts": 8,
            "provenance": {"key": "k"},
        }
        return Answer(values=values, axes=tuple(axes), **(settled | more))

    return make


@pytest.fixture
def axis():
    """An axis with numbers as labels."""
    return lambda name, n, groups=None: Axis(name, tuple(map(str, range(n))), groups)


@pytest.fixture
def band():
    """A flat null or an interval around values."""
    return lambda low, high: Band(
        np.asarray(low, float),
        np.asarray(high, float),
        "planted",
        (np.asarray(low, float) + np.asarray(high, float)) / 2,
    )


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def full():
    made = Client("http://fake", httpx.ASGITransport(create_fake(everything_stored=True)))
    yield made
    await made.close()
