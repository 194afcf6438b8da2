"""Mathematics: the theorems of set.mm (CC0-1.0), each as its English description and its formal statement.

Proofs are left out: they are lists of labels. A document is a section of the database, because neighbouring theorems
are variations of one another.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from backend.lab.document import Document, Source
from backend.lab.sources import fetch

PACKAGE, VERSION = "metamath-databases", "0.0.0~20210101.git55fe226-2"
STATEMENT = re.compile(
    r"\$\(\s(?P<comment>.*?)\s\$\)|(?P<open>\$\{)|(?P<close>\$\})"
    r"|(?P<label>[\w.-]+)\s+\$(?P<kind>[aep])\s+(?P<formula>.*?)\s+\$(?:\.|=.*?\$\.)",
    re.DOTALL,
)
HEADING = re.compile(r"[#=*.-]{20,}\s+(?P<title>\S.*?)\s+[#=*.-]{20,}", re.DOTALL)
EDITORIAL = re.compile(
    r"\((?:Contributed|Revised|Proof shortened|Proof revised|Proof modification|New usage|Moved|Modified|Shortened|"
    r"Unnecessary|Removed|Expanded|Visual|This )[^()]*(?:\([^()]*\)[^()]*)*\)"
)
REPEATS = re.compile(r"^(?:Lemma|Obsolete|Alternate)\b|^(?:Part|Same|Version) of\b")
SMALLEST = 1_500


def read(folder: Path) -> Source:
    """Fetch the package into `folder` and return one document a section of set.mm."""
    database = fetch.debian(PACKAGE, VERSION, folder) / "usr/share/metamath/databases/set.mm"
    documents = sections(database.read_text(encoding="ascii"))
    return Source("metamath-set.mm", "mathematics", VERSION, "CC0-1.0", tuple(documents))


def sections(database: str) -> list[Document]:
    """Return the theorems of a Metamath database, a document a section, proofs left out."""
    texts: dict[str, list[str]] = {}
    for title, theorem in _theorems(database):
        texts.setdefault(title, []).append(theorem)
    joined = {title: "\n\n".join(theorems) for title, theorems in texts.items()}
    return [Document("metamath-set.mm", title, text) for title, text in joined.items() if len(text) >= SMALLEST]


def _theorems(database: str) -> Iterator[tuple[str, str]]:
    title, comment, number = "", "", 0
    scopes: list[list[str]] = [[]]
    for match in STATEMENT.finditer(database):
        if match["open"]:
            scopes.append([])
        elif match["close"]:
            scopes.pop()
        elif match["comment"] is not None:
            heading = HEADING.search(match["comment"])
            if heading:
                number += 1
                title = f"{number:04d} {' '.join(heading['title'].split())}"
            comment = match["comment"]
        elif match["kind"] == "e":
            scopes[-1].append(_formula(match["formula"]))
        else:
            text = description(comment)
            comment = ""
            if title and match["formula"].startswith("|-") and text and not REPEATS.match(text):
                yield title, _theorem(text, match["label"], [h for scope in scopes for h in scope], match["formula"])


def _theorem(text: str, label: str, hypotheses: list[str], formula: str) -> str:
    given = f"{' & '.join(hypotheses)} => " if hypotheses else ""
    return f"{text}\n{label}: {given}{_formula(formula)}"


def _formula(formula: str) -> str:
    return " ".join(formula.split()[1:])


def description(comment: str) -> str:
    """Return a theorem's comment without its editorial notes and markup, on one line."""
    text = " ".join(comment.split())
    text = EDITORIAL.sub("", text)
    text = re.sub(r"` ([^`]*) `", r"\1", text)
    text = re.sub(r"~ (\S+)", r"\1", text)
    text = re.sub(r"<[^<>]*>|(?<!\w)_(?=\w)|(?<=\w)_(?!\w)", "", text)
    text = " ".join(text.split())
    # A label or formula is set off by spaces, also from the full stop that follows it.
    return re.sub(r"(?<=[\w)\]]) (?=[.,;:](?:\s|$))", "", text)
