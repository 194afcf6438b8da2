"""The published experiments that `moe-geometry lab reproduce` repeats: a file each, found by its name."""

from importlib import import_module
from pkgutil import iter_modules

from backend.errors import NotFound
from backend.lab.experiment import Experiment


class UnknownExperiment(NotFound):
    """Raised when there is no experiment of that name; the text lists them."""


def names() -> tuple[str, ...]:
    """All experiments, as they are typed."""
    return tuple(sorted(module.name.replace("_", "-") for module in iter_modules(__path__)))


def get(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in names():
        raise UnknownExperiment(f"There is no experiment {name!r}; there are {', '.join(names())}.", list(names()))
    return import_module(f"{__name__}.{name.replace('-', '_')}").EXPERIMENT
