"""One router a file; the file's name is the name a config gives, and being here is the whole registration."""

import importlib
import inspect
import pkgutil

from transformers.configuration_utils import PreTrainedConfig

from analysis.errors import BadDeclaration, UnknownName
from analysis.lab.router import Router

DENSE = "dense"  # the control without experts: a name among the routers' that stands for none of them


def router_names() -> tuple[str, ...]:
    """Names that a config may give as `router`, the dense control left out.

    Returns:
        File names of this folder, sorted, no unit.

    Source:
        Ours: one file is one router, so there is no list to keep in step.
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def serves_all(name: str) -> bool:
    """Whether this router has a slot for every expert at each token: k is then the number of experts.

    Returns:
        True for the soft router and expert choice; False for the dense control.

    Raises:
        UnknownName: If no file has that name.

    Source:
        Ours.
    """
    return name != DENSE and _router(name).serves_all


def option_names(name: str) -> tuple[str, ...]:
    """Fields of the config that this router reads: what its class and the classes it is made of declare.

    Returns:
        In alphabetical order.

    Raises:
        UnknownName: If no file has that name.

    Source:
        Ours.
    """
    kind = _router(name)
    declared = {option for part in kind.__mro__ for option in part.__dict__.get("options", ())}
    return tuple(sorted(declared - set(kind.unread)))


def build_router(config: PreTrainedConfig) -> Router:
    """The router that `config.router` names, for one layer.

    Returns:
        A module with zero weights; `analysis.lab.model.initialise` fills them.

    Raises:
        UnknownName: If no file has that name; says which there are.
        BadDeclaration: If the file does not define exactly one router.

    Source:
        Ours.
    """
    return _router(config.router)(config)


def _router(name: str) -> type[Router]:
    if name not in router_names():
        raise UnknownName(f"router {name!r} is not known; there are {', '.join((*router_names(), DENSE))}")
    module = importlib.import_module(f"{__name__}.{name}")
    found = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Router) and kind.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise BadDeclaration(f"analysis/lab/routers/{name}.py defines {len(found)} routers; one file is one router")
    return found[0]
