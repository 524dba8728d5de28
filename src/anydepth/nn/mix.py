"""What a layer reads: the state before it, or a learned mixture of all earlier ones."""

import torch
from torch import Tensor, nn

from anydepth.nn.layers import LayerConfig, make_norm


class LinearMix(nn.Module):
    """Dynamic linear combination of layers (DLCL, Wang et al. 2019): x_{l+1} = Σ_{k ≤ l} W_k^{l+1} · LN(y_k).

    y_0 is the embedding, which has no norm of its own, and y_k the output of layer k. The weights of each mixture start
    at their average. Every layer so has a direct path to all before it.
    """

    def __init__(self, config: LayerConfig, layers: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full((k + 1,), 1 / (k + 1))) for k in range(layers + 1))
        norms = [make_norm(config) if config.norm == "pre" else nn.Identity() for _ in range(layers)]
        self.norms = nn.ModuleList([nn.Identity(), *norms])

    def forward(self, earlier: list[Tensor], state: Tensor) -> Tensor:
        """The mixture of the earlier states, normalised, and the newest, which joins them."""
        earlier.append(self.norms[len(earlier)](state))
        weights = self.weights[len(earlier) - 1].to(state.dtype)
        # one product after the other: stacked, the states of all layers would be copied for each of them
        mixture = weights[0] * earlier[0]
        for weight, other in zip(weights[1:], earlier[1:]):
            mixture = mixture + weight * other
        return mixture
