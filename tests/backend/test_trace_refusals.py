"""Counts that are wrong, cut short or open to doubt, and pickles: a sentence that names the file and what is wrong."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.errors import NotFound, Refusal
from backend.traces import Options, read
from tests.backend.trace_files import CHOSEN, Bad, cut, objects, refused

COUNTS = np.array([[3, 1, 2, 2], [0, 4, 4, 0]])


class Bomb:
    """What a pickle may do when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was opened",))


def matrix(*places: tuple[int, int, float]) -> np.ndarray:
    found = COUNTS.astype(float)
    for layer, expert, value in places:
        found[layer, expert] = value
    return found


ROUTED = {"experts": 4}

BAD: Bad = {
    # never opened
    "a pickle by its name": ("a.pt", b"x", {}, "a.pt is a pickle, which runs code"),
    "a pickle by its bytes": ("a.npy", pickle.dumps(Bomb()), {}, "a.npy is a pickle, which runs code"),
    "objects in a .npy": (
        "a.npy",
        objects(npy=np.array([[Bomb()]], dtype=object)),
        {},
        "a.npy holds Python objects (a pickle)",
    ),
    "objects in a .npz": (
        "a.npz",
        objects(routed_experts=np.array([Bomb()], dtype=object)),
        {},
        "a.npz, array 'routed_experts' holds Python objects (a pickle)",
    ),
    # no trace
    "a text": ("a.txt", "hello", {}, "a.txt is no kind of trace that is known. Known are counts:"),
    "a long table of its own": ("a.csv", "token,layer,expert\n0,0,1\n", {}, "a.csv is no kind of trace that is known."),
    "an unknown format": ("a.npy", COUNTS, {"format": "csv"}, "--format 'csv' is not known; known: counts, flame,"),
    "a stack that may be two things": ("a.npy", np.array(CHOSEN), {}, "a.npy may be counts or vllm"),
    "pairs without a header": ("a.csv", "0,1\n1,0\n", {"k": 1}, "a.csv may be counts or moe-trace"),
    # count matrices
    "k left open": ("a.npy", COUNTS, {}, "a.npy does not say how many experts a token chooses; give --k."),
    "k that contradicts the file": (
        "a.json",
        {"counts": COUNTS.tolist(), "k": 2},
        {"k": 4},
        "a.json says k = 2, and --k says 4.",
    ),
    "k that is no number": (
        "a.json",
        {"counts": COUNTS.tolist(), "k": "2"},
        {},
        "a.json: k is '2'; it must be a whole number",
    ),
    "a NaN among counts": (
        "a.npy",
        matrix((0, 1, np.nan)),
        {"k": 2},
        "a.npy: counts[0, 1] is nan; it must be a whole number.",
    ),
    "half a selection": ("a.npy", matrix((1, 2, 0.5)), {"k": 2}, "a.npy: counts[1, 2] is 0.5"),
    "a negative count": ("a.npy", matrix((1, 2, -4)), {"k": 2}, "a.npy: counts[1, 2] is -4; a count is 0 or more."),
    "layers of different tokens": (
        "a.npy",
        matrix((1, 2, 2)),
        {"k": 2},
        "a.npy: layer 1 counts 6 selections and layer 0 8",
    ),
    "swapped axes": (
        "a.npy",
        COUNTS.T,
        {"k": 2},
        "all layers see the same tokens. Is the file cut short, or are its axes",
    ),
    "a k that does not divide": (
        "a.npy",
        COUNTS,
        {"k": 3},
        "a.npy: 8 selections a layer are no whole number of tokens at k = 3.",
    ),
    "a k that is too large": (
        "a.npy",
        np.array([[6, 0, 1, 1]]),
        {"k": 2},
        "expert 0 of layer 0 was chosen 6 times by 4 tokens",
    ),
    "k of all experts": (
        "a.npy",
        np.array([[4, 4]]),
        {"k": 2},
        "every token uses every expert, and counts tell nothing apart",
    ),
    "nothing counted": ("a.npy", np.zeros((2, 4)), {"k": 2}, "a.npy: all counts are 0; no token was counted."),
    "one axis": (
        "a.npy",
        np.arange(4),
        {"k": 2, "format": "counts"},
        "a.npy: counts have shape [4]; they must be [layers, experts].",
    ),
    "a layer that is not there": (
        "a.npy",
        COUNTS,
        {"k": 2, "layers": "0-2"},
        "a.npy has layers 0 to 1, and --layers names 2",
    ),
    "other experts than said": (
        "a.npy",
        COUNTS,
        {"k": 2, "experts": 8},
        "a.npy counts 4 experts a layer, and --experts says 8.",
    ),
    "ragged lists": ("a.json", [[1, 2], [3]], {"k": 1}, "a.json: the list is ragged"),
    "words for counts": (
        "a.json",
        {"counts": [["a", "b"]]},
        {"k": 1},
        "a.json: counts holds something that is no number",
    ),
    "texts of different models": (
        "a.json",
        {"counts": {"x": [[1, 1]], "y": [[1, 1, 0]]}},
        {"k": 1},
        "counts of 'y' have shape [1, 3] and those of 'x' [1, 2]",
    ),
    "names of more layers": (
        "a.json",
        {"counts": COUNTS.tolist(), "layers": [1]},
        {"k": 2},
        "1 names of layers for counts of 2",
    ),
    "a .npy cut short": ("a.npy", cut(objects(npy=COUNTS)), {"k": 2}, "a.npy is no whole NumPy file"),
    "JSON cut short": ("a.json", "[[1, 2], [3", {"k": 1}, "a.json is not whole JSON"),
    "CSV cut short": ("a.csv", "1,2,1\n2,1\n", {"k": 2}, "a.csv, row 2 has 2 cells and row 1 3. Was it cut short?"),
    "a word in a CSV": ("a.csv", "E0,E1,E2\n1,x,1\n", {"k": 2}, "a.csv, row 2: 'x' is no count."),
    "NaN in a CSV": ("a.csv", "E0,E1,E2\n1,nan,1\n", {"k": 2}, "a.csv: counts[0, 1] is nan"),
    "CSV of a header": ("a.csv", "E0,E1,E2\n", {"k": 2}, "a.csv has a header and no counts."),
    # moe-trace
    "experts left open": (
        "a.csv",
        "layer,expert\n0,1\n",
        {"k": 1},
        "a.csv does not say how many experts a layer has; give --experts.",
    ),
    "a line of three": (
        "a.csv",
        "layer,expert\n0,1\n0,1,2\n",
        {"k": 1, **ROUTED},
        "a.csv, line 3 is '0,1,2'; it must be LAYER,EXPERT.",
    ),
    "a line cut short": ("a.csv", "layer,expert\n0,1\n0,\n", {"k": 1, **ROUTED}, "a.csv, line 3 is '0,'"),
    "an expert too high": (
        "a.csv",
        "layer,expert\n5,4\n",
        {"k": 1, **ROUTED},
        "a.csv: expert 4 in layer 5; ids are 0 to 3 (--experts).",
    ),
    "a token cut short": (
        "a.csv",
        "layer,expert\n0,1\n0,2\n1,1\n",
        {"k": 2, **ROUTED},
        "layer 1 counts 1 selections and layer 0 2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    refused(tmp_path, BAD[case])


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"There is no file .*gone\.npy"):
        read(tmp_path / "gone.npy", Options())


def test_a_zip_that_hides_a_pickle_is_not_opened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    with pytest.raises(Refusal, match=r"a\.npz"):
        read(tmp_path / "a.npz", Options())


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"layers": "3-"}, "--layers '3-' is no list of layers"),
        ({"layers": "5-3"}, "does not go up"),
        ({"layers": "1,1"}, "names a layer twice"),
        ({"k": 0}, "--k is 0; it must be 1 or more."),
        ({"k": 9, "experts": 8}, "a token cannot choose more experts than there are"),
    ],
)
def test_an_option_that_nothing_can_have_is_refused(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=re.escape(sentence)):
        Options.said(said)
