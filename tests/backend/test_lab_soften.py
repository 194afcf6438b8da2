"""A step switched to fully soft routing: rows and experts stay, every expert serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from analysis.errors import NotComparable
from analysis.lab.model import register, routers
from backend.lab.soften import soften

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("run", ["aux", "free", "none"])
def test_a_softened_step_has_the_same_rows_and_experts_and_every_expert_serves(
    run: str, root: Path, tmp_path: Path
) -> None:
    register()
    step = root / "data" / "checkpoints" / run / "step-00320"
    soften(step, tmp_path / "soft" / step.name)
    own, soft = (AutoModelForCausalLM.from_pretrained(each).eval() for each in (step, tmp_path / "soft" / step.name))
    theirs = soft.state_dict()
    assert all(torch.equal(theirs[name], value) for name, value in own.state_dict().items() if name in theirs)
    assert set(own.state_dict()) - set(theirs) == {
        name for name in own.state_dict() if name.endswith("e_score_correction_bias")
    }
    hidden = torch.randn(5, own.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for mine, other in zip(routers(own), routers(soft), strict=True):
        logits, weights, index = other(hidden)
        assert_close(logits, mine(hidden)[0])
        assert_close(weights, logits.softmax(-1))
        assert index.shape[1] == own.config.num_experts


def test_a_router_that_is_no_softmax_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="kmeans/step-00320 has the router 'kmeans'"):
        soften(root / "data" / "checkpoints" / "kmeans" / "step-00320", tmp_path / "soft")
    assert not (tmp_path / "soft").exists()
