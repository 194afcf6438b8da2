"""A model of transformers trains with a router of the lab as backend/README.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from analysis.lab.model import routers, seed_routers
from analysis.lab.options import router_options
from analysis.lab.routers import router_names
from analysis.lab.step import auxiliary_loss, update_routers, watching
from backend.lab.swap import swap_routers
from tests.backend import tiny_moe

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

STEPS, LENGTH = 6, 12
BIAS = "e_score_correction_bias"
MOVED = {"kmeans": {"weight", BIAS}, "loss_free": {"weight", BIAS}, "softmax_aux": {"weight"}}


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    return getattr(tiny_moe, family)().train()


def batch(filler: int = 0) -> dict[str, Tensor]:
    """Two sequences, the second of seven tokens and padding; `filler` decides what the padding holds."""
    ids = torch.randint(0, 256, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    padding = torch.randint(0, 256, ids.shape, generator=torch.Generator().manual_seed(2 + filler))
    ids = torch.where(mask.bool(), ids, padding)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def shown(root: Path) -> str:
    text = (root / "backend" / "README.md").read_text("utf-8")
    heading = "^### A router of the lab in another model"
    block = re.search(heading + r".*?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block, "backend/README.md shows no code under `A router of the lab in another model`"
    return block.group(1)


@pytest.mark.parametrize("router", sorted(MOVED))
@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe"])
def test_the_loop_of_the_readme_lowers_the_loss_and_moves_what_balances(family: str, router: str, root: Path) -> None:
    option = {"softmax_aux": "router_aux_loss_coef"}.get(router, "router_bias_update_speed")
    code = shown(root).replace('"kmeans", router_bias_update_speed', f'"{router}", {option}')
    model = model_of(family)
    before = {}

    class Loader:
        def __iter__(self) -> Any:
            for step in range(STEPS):
                if step == 1:
                    before.update({name: value.clone() for name, value in state(model).items()})
                yield batch()

    start = held_out(model)
    exec(code, {"model": model, "loader": Loader()})
    assert held_out(model) < start - 0.1
    after = state(model)
    moved = {name.rpartition(".")[2] for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == MOVED[router], "in the steps after the first"
    assert all(part.counts is None for part in routers(model)), "what was gathered is applied and forgotten"


@torch.no_grad()
def held_out(model: Any) -> float:
    """The loss in evaluation mode, which moves nothing."""
    loss = float(model.eval()(**batch()).loss)
    model.train()
    return loss


def state(model: Any) -> dict[str, Tensor]:
    return {f"{n}.{name}": value for n, part in enumerate(routers(model)) for name, value in part.state_dict().items()}


def stepped(router: str, filler: int, **options: Any) -> tuple[float, dict[str, Tensor]]:
    """The auxiliary loss of one pass and the routers' state after it."""
    model, given = model_of("olmoe"), batch(filler)
    z_loss = {"router_z_loss_coef": 0.1} if "router_z_loss_coef" in router_options(router) else {}
    swap_routers(model, router, **z_loss, **options)
    seed_routers(model, given["input_ids"], 0, given["attention_mask"])
    with watching(model) as seen:
        model(**given)
    gathered = [part.counts for part in routers(model)]
    assert all(counts is not None and counts.sum() % 19 == 0 for counts in gathered), "19 tokens are real"
    loss = float(auxiliary_loss(model, seen, 2).detach())
    update_routers(model)
    return loss, state(model)


CASES = [(name, {}) for name in router_names()]
CASES += [("softmax_aux", {"router_aux_scope": scope}) for scope in ("sequence", "global")]


@pytest.mark.parametrize(("router", "options"), CASES)
def test_what_padding_holds_changes_no_loss_and_no_state(router: str, options: dict[str, Any]) -> None:
    loss, after = stepped(router, 0, **options)
    other, beside = stepped(router, 1, **options)
    assert loss > 0 or router == "hashed"  # which has no loss
    assert_close(other, loss, rtol=1e-6, atol=0)
    assert all(torch.equal(value, beside[name]) for name, value in after.items())
