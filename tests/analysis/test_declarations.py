"""Dropping a file in is all it takes; a file that lies about itself is refused; prose never changes a key."""

import importlib.util
import inspect
import itertools
import pickle
import pkgutil
import re
import sys
from pathlib import Path
from typing import Literal

import pytest

import analysis
from analysis.code import code_digest, code_of
from analysis.errors import BadDeclaration, GeometryError
from analysis.knob import docstring_section
from analysis.measure import get, measure, measures
from analysis.statistic import Spec, statistic, statistics

NUMBER = itertools.count()


@pytest.fixture
def module_of(tmp_path, monkeypatch):
    def load(text):
        name = f"made_up_{next(NUMBER)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


PLAIN = '"""Title."""\n\n\ndef f(x):\n    """Says one thing."""\n    # why\n    return x + 1\n'


def test_a_docstring_or_a_comment_keeps_the_digest(module_of):
    edited = PLAIN.replace("Says one thing.", "Says another.\n\n    At length.").replace("# why", "# because")
    edited = edited.replace('"""Title."""', '"""Another title."""')
    assert code_digest(module_of(PLAIN)) == code_digest(module_of(edited))


def test_an_edit_of_code_changes_the_digest(module_of):
    assert code_digest(module_of(PLAIN)) != code_digest(module_of(PLAIN.replace("x + 1", "x + 2")))


def test_the_code_of_a_measure_is_that_of_its_file(module_of, monkeypatch):
    original = get("load_violation")
    source = inspect.getsource(inspect.getmodule(original.function))
    # The registry must not learn of the copies.
    kept = "from analysis.measure import Chance, Values, measure\n"
    fake = "from analysis.measure import Chance, Values\n\n\ndef measure(**_):\n    return lambda f: f\n\n\n"
    source = source.replace(kept, fake).replace("@load_violation.chance\n", "")
    edits = {
        "same": source,
        "prose": source.replace("MaxVio per layer:", "The violation of each layer:"),
        "code": source.replace("one_sided=True", "one_sided=False"),
    }
    codes = {}
    for name, text in edits.items():
        copy = module_of(text)
        monkeypatch.setattr(original, "function", copy.load_violation)
        # Names of modules are part of a digest of several modules, so the same name for all three.
        copy.__name__ = "made_up"
        monkeypatch.setitem(sys.modules, "made_up", copy)
        copy.load_violation.__module__ = "made_up"
        codes[name] = code_of([copy])
        assert len(original.code) == 32
    assert codes["same"] == codes["prose"] != codes["code"]


def test_a_formula_in_a_shared_file_is_part_of_the_code(module_of):
    plain = module_of("from analysis.loads import relative\n")
    bare = module_of("relative = 1\n")
    plain.__name__ = bare.__name__ = "made_up"
    assert code_of([plain]) != code_of([bare])
    assert code_of([plain, bare]) == code_of([plain, bare])


def test_measures_that_read_the_same_differ_in_code():
    codes = [m.code for m in measures().values()]
    assert len(set(codes)) == len(codes)


def said(**changes):
    words = {"title": "t", "question": "q?", "unit": "u", "family": "routing", "source": "s", "axes": ("layer",)}
    return measure(**(words | changes))


def test_a_misspelt_slot_is_refused_with_the_known_ones():
    def misspelt(router_wieght):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="router_weight"):
        said()(misspelt)
    assert "misspelt" not in measures()


def test_an_unknown_family_is_refused_with_the_pages():
    def homeless(router_weight):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="specialisation"):
        said(family="no page")(homeless)


def test_a_duplicate_name_is_refused():
    def expert_load(router_weight):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="declared twice"):
        said()(expert_load)


def test_a_knob_of_an_unknown_kind_is_refused():
    def odd(router_weight, *, knob: list = []):  # noqa: B006
        """Nothing."""

    with pytest.raises(BadDeclaration, match="use Literal, bool, int or float"):
        said()(odd)


def test_measures_of_sampled_inputs_keep_out_of_the_lane_of_short_questions():
    """At 64 experts in 2,048 dimensions each takes 8 seconds a layer or more, whatever its knobs."""
    readers = [each for each in measures().values() if {"routed_rows", "expert_rows"} & set(each.statistics)]
    assert len(readers) >= 5
    assert not [each.name for each in readers if not each.is_slow({})]


def test_slow_if_must_name_a_knob():
    def swift(router_weight, *, fast: bool = True):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="slow_if names"):
        said(slow_if={"method": "umap"})(swift)


@pytest.mark.parametrize(
    ("told", "seen"), [({"method": {"umap": "no"}}, "names"), ({"speed": {"idle": "no"}}, "no choice of 'speed'")]
)
def test_no_interval_if_must_name_a_knob_and_its_choices(told, seen):
    def swift(router_weight, *, speed: Literal["fast", "slow"] = "fast"):
        """Nothing."""

    with pytest.raises(BadDeclaration, match=f"no_interval_if.* {seen}"):
        said(no_interval_if=told)(swift)


def test_sides_are_called_a_and_b():
    def one_sided(a):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="two positional arguments a, b"):
        said(reads=("prompt_counts",))(one_sided)


def test_a_statistic_that_needs_the_impossible_is_refused():
    def greedy(batch):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="a pass can give"):
        statistic(needs=("everything",), arrays={"x": Spec(("prompt",))})(greedy)
    assert "greedy" not in statistics()


def test_inputs_travel_to_another_process(world):
    (side,) = world.inputs_for(get("expert_load"))
    back = pickle.loads(pickle.dumps(side))
    assert back.prompt_counts.prompts == side.prompt_counts.prompts
    with pytest.raises(AttributeError):
        back.no_such_slot  # noqa: B018


def public_functions():
    for info in pkgutil.walk_packages(analysis.__path__, "analysis."):
        if info.name.startswith("analysis.lab"):
            continue
        module = importlib.import_module(info.name)
        for name, thing in vars(module).items():
            thing = inspect.unwrap(getattr(thing, "function", thing))
            if inspect.isfunction(thing) and not name.startswith("_") and thing.__module__ == info.name:
                yield f"{info.name}.{name}", thing


PUBLIC = dict(public_functions())


@pytest.mark.parametrize(("name", "function"), PUBLIC.items(), ids=list(PUBLIC))
def test_a_public_function_says_what_it_gives_and_whose_idea_it_is(name, function):
    first = (inspect.getdoc(function) or "").splitlines()
    assert first and first[0].strip().endswith((".", "?", ":")), name
    assert docstring_section(function, "Returns"), name
    assert docstring_section(function, "Source"), name


@pytest.mark.parametrize("name", sorted(measures()))
def test_a_measure_says_how_not_to_misread_it(name):
    assert len(get(name).caveat) > 40


def test_every_refusal_is_a_geometry_error():
    from analysis import errors

    kinds = [e for e in vars(errors).values() if inspect.isclass(e) and e is not GeometryError]
    assert kinds and all(issubclass(e, GeometryError) and e.__doc__ and "Raised" in e.__doc__ for e in kinds)


def test_every_measure_without_an_interval_is_on_the_dated_list():
    readme = (Path(analysis.__file__).parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d{4}-\d\d-\d\d \| `(\w+(?: \w+=\w+)?)` \| (.+) \|$", readme, re.MULTILINE)
    excused = {m.name: m.interval_reason for m in measures().values() if m.interval_reason}
    for m in measures().values():
        excused |= {f"{m.name} {k}={v}": why for k, told in m.no_interval_if.items() for v, why in told.items()}
    assert {n: r for n, r in excused.items() if r != "see trustworthiness"} == dict(rows)
    assert len({name.split()[0] for name, _ in rows}) <= 8
