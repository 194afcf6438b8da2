"""One file per format: a `TITLE`, a sniffing rule `fits(file)`, and `read(file, options)`, which gives a draft."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from backend.errors import Refusal
from backend.traces.draft import Draft
from backend.traces.file import File
from backend.traces.options import Options


class Format(Protocol):
    """What a file of this folder is."""

    TITLE: str

    def fits(self, file: File) -> bool:
        """Whether the file looks like one of these."""
        ...

    def read(self, file: File, options: Options) -> Draft:
        """Its routes or counts; raises a refusal naming file and field."""
        ...


@cache
def formats() -> dict[str, Format]:
    """All formats by name: whatever lies in this folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): cast(Format, importlib.import_module(f"{__name__}.{name}")) for name in names}


def read(path: Path, options: Options) -> tuple[str, Draft]:
    """The format and the draft of a file.

    Raises:
        Refusal: No format fits, or more than one does and none was named; the text says what to do.
    """
    known = formats()
    if options.format is not None and options.format not in known:
        raise Refusal(f"--format {options.format!r} is not known; known: {', '.join(known)}.", known=list(known))
    file = File(path)
    name = options.format or _sniffed(file, known)
    return name, known[name].read(file, options)


def _sniffed(file: File, known: dict[str, Format]) -> str:
    fitting = [name for name, module in known.items() if module.fits(file)]
    if not fitting:
        titles = "; ".join(f"{name}: {module.TITLE}" for name, module in known.items())
        raise Refusal(f"{file.name} is no kind of trace that is known. Known are {titles}.", known=list(known))
    if len(fitting) > 1:
        raise Refusal(
            f"{file.name} may be {' or '.join(fitting)} ({'; '.join(f'{n}: {known[n].TITLE}' for n in fitting)}), and "
            "the file does not say which; give --format.",
            known=fitting,
            asks="format",
        )
    return fitting[0]
