"""Per token: who it is, and the experts it chose in every layer. For measures that need the tokens themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.slots import RouteBatch
from analysis.statistic import Spec, statistic


@statistic(
    needs=("routes",),
    arrays={
        "prompt": Spec(("token",), torch.int64),
        "position": Spec(("token",), torch.int32),
        "token": Spec(("token",), torch.int32),
        "next": Spec(("token",), torch.int32),
        "predicted": Spec(("token",), torch.int32),
        "end": Spec(("token",), torch.int32),
        "indices": Spec(("token", "layer", "k"), torch.int16),
        "weights": Spec(("token", "layer", "k"), torch.float16),
    },
)
def token_routes(batch: RouteBatch) -> dict[str, Tensor]:
    """Chosen experts and combine weights of every token in every layer, with its id, the next id and the predicted id.

    It grows with tokens: 4 L k + 28 bytes each (L layers, k experts a token).

    Returns:
        `indices` 0 to E - 1, E and above for identity experts; `weights` rounded to float16; `next` -1 at a prompt's
        end; `end` the character of the prompt's text at which it ends, -1 for a token that the text does not hold;
        `prompt` numbers the prompts of the state.

    Source:
        Ours: saturation, transitions and vocabulary need pairs of tokens that no sum keeps.
    """
    keys = batch.keys
    return {
        "prompt": keys.prompt.long(),
        **{name: getattr(keys, name).int() for name in ("position", "token", "next", "predicted")},
        "end": keys.span[:, 1].int(),
        "indices": batch.indices.permute(1, 0, 2).to(torch.int16),
        "weights": batch.weights.permute(1, 0, 2).to(torch.float16),
    }
