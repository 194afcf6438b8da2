"""Every measure against worlds in which something was planted: what it must find, and what must leave it alone.

A row is a measure, a column a plant, and no cell is empty. A cell is a number known beforehand, a relation that holds
exactly, SAME (the plant does not affect this measure, and its values stay what they were) or, where nobody named one,
MOVED (it does, by no number known). A new measure needs a row.
"""

from functools import cache

import numpy as np
import pytest

from analysis.errors import TooFew
from analysis.inference import evaluate
from analysis.measure import measures
from tests.analysis import plants
from tests.analysis.plant_cells import MOVED, REFUSED, SAME, Seen
from tests.analysis.plant_experts import EXPERTS
from tests.analysis.plant_routing import ROUTING
from tests.analysis.plant_unaffected import TOO_FEW, UNAFFECTED
from tests.analysis.plants import PLANTS

KNOWN = ROUTING | EXPERTS
TABLE = {
    name: dict.fromkeys(PLANTS, MOVED)
    | dict.fromkeys(UNAFFECTED.get(name, ()), SAME)
    | dict.fromkeys(TOO_FEW.get(name, ()), REFUSED)
    | row
    for name, row in KNOWN.items()
}


@pytest.fixture(scope="module")
def grown(world):
    """Each planted world, grown once."""
    base = plants.unplanted(world)
    return cache(lambda name: plants.grown(world, PLANTS[name](base) if name else base))


@pytest.fixture(scope="module")
def unplanted():
    """Answers of the unplanted world: many cells ask for the same one."""
    return {}


CELLS = [(name, plant) for name, row in TABLE.items() for plant in row]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plant"), CELLS, ids=[f"{name}-{plant}" for name, plant in CELLS])
def test_what_was_planted_is_found_and_what_was_not_stays(name, plant, world, grown, unplanted):
    measure, cell = measures()[name], TABLE[name][plant]
    base, planted = grown(""), grown(plant)

    def asked(seen):
        return evaluate(measure, plants.sides(world, measure, seen, base), cell.knobs)

    def before():
        key = (name, *cell.knobs.items())
        if key not in unplanted:
            unplanted[key] = asked(base).values
        return unplanted[key]

    if cell.refused:
        with pytest.raises(TooFew):
            asked(planted)
        return
    found = asked(planted)
    cell.check(Seen(found.values, dict(found.facts), before, measure.axes, planted, base))
    if np.isnan(found.values).any():
        assert any(caveat.startswith("NaN: ") for caveat in found.caveats)


def test_every_measure_has_a_row_and_every_row_says_something():
    assert set(KNOWN) == set(measures())
    assert all(row and set(row) <= set(PLANTS) for row in KNOWN.values())
    # A row of nothing but `not affected` would not notice a measure that always says the same.
    assert [name for name, row in KNOWN.items() if all(cell.check is SAME.check for cell in row.values())] == []
    assert set(PLANTS) == {plant for row in KNOWN.values() for plant in row}
