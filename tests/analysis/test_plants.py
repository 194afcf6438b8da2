"""Every measure against worlds in which something was planted: what it must find, and what must leave it alone.

A row is a measure, a column a plant, and no cell is empty. A cell is a number known beforehand, a relation that holds
exactly, SAME (the plant does not affect this measure, and its values stay what they were) or, where nobody named one,
the number that the measure's definition gives when `naive.py` reads it in plain loops. What a reading gives is asked
beside the other cells too, and of the unplanted world that SAME refers to. A new measure needs a row.
"""

from functools import cache

import numpy as np
import pytest

from analysis.errors import TooFew
from analysis.inference import evaluate
from analysis.measure import measures
from tests.analysis import naive, plants
from tests.analysis.plant_cells import MAP, NUMBER, REFUSED, SAME, Seen, close
from tests.analysis.plant_experts import EXPERTS
from tests.analysis.plant_routing import ROUTING
from tests.analysis.plant_unaffected import TOO_FEW, UNAFFECTED
from tests.analysis.plants import PLANTS

KNOWN = ROUTING | EXPERTS
MAPS = {"expert_embedding", "signature_embedding", "centroid_map", "router_row_map"}
READ = {name: MAP if name in MAPS else NUMBER for name in naive.OF_ONE | naive.OF_TWO}
TABLE = {
    name: (dict.fromkeys(PLANTS, READ[name]) if name in READ else {})
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

    def number(seen=planted):
        return naive.number(name, base, seen, cell.knobs)

    def read(seen, values):
        # Maps are read in their own cells: not every plane is the only one.
        if naive.reads(name, cell.knobs) and name not in MAPS:
            close(values, number(seen))

    def before():
        key = (name, *cell.knobs.items())
        if key not in unplanted:
            unplanted[key] = asked(base).values
            read(base, unplanted[key])
        return unplanted[key]

    if cell.refused:
        with pytest.raises(TooFew):
            asked(planted)
        return
    found = asked(planted)
    seen = Seen(found.values, dict(found.facts), before, measure.axes, planted, base, number)
    cell.check(seen)
    if cell.check not in (SAME.check, NUMBER.check):
        read(planted, found.values)
    if np.isnan(found.values).any():
        assert any(caveat.startswith("NaN: ") for caveat in found.caveats)


def test_every_measure_has_a_row_and_every_row_says_something():
    assert set(KNOWN) == set(measures())
    assert all(row and set(row) <= set(PLANTS) for row in KNOWN.values())
    # A cell that a row leaves open is a number only where the measure has a reading.
    assert {name: left for name, row in TABLE.items() if (left := set(PLANTS) - set(row))} == {}
    # A row of nothing but `not affected` would not notice a measure that always says the same.
    assert [name for name, row in KNOWN.items() if all(cell.check is SAME.check for cell in row.values())] == []
    assert set(PLANTS) == {plant for row in KNOWN.values() for plant in row}
