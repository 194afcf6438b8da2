"""Code: the modules of Python's standard library (PSF-2.0), as they lie on this machine."""

import platform
import re
import sysconfig
from pathlib import Path

from backend.lab.document import Document, Source

LEFT_OUT = {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "pydoc_data", "__pycache__"}
"""Tests repeat themselves, encodings and pydoc_data are tables, and *-packages are not Python's own."""

SMALLEST, LARGEST = 1_500, 120_000
COPYLEFT = re.compile(r"\bA?L?GPL\b|GNU (?:Lesser |Affero )?General Public", re.IGNORECASE)


def read(root: Path | None = None) -> Source:
    """Return one document a module, of readable size, none that mentions a copyleft licence."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if LEFT_OUT & set(name.parts) or any(part.startswith("config-") for part in name.parts):
            continue
        text = _text(path)
        if text and SMALLEST <= len(text) <= LARGEST and not COPYLEFT.search(text):
            documents.append(Document("python-stdlib", name.as_posix(), text))
    return Source("python-stdlib", "code", platform.python_version(), "PSF-2.0", tuple(documents))


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
    return text.expandtabs(8).replace("\r\n", "\n").replace("\f", "")
