"""After which layer a token leaves: Elbayad et al., 2020, https://arxiv.org/abs/1910.10073, section 3.

Networks that learn a distribution q over the layers 1..N, and the oracles that say which layer they should have chosen.
"""

from contextlib import nullcontext

import torch
from torch import nn

from transformers_xl.configuration.configuration_depth_adaptive_transformer import DepthAdaptiveTransformerConfig
from transformers_xl.modeling.memory.segment import Segment


# B batch, T segment length, N layers, E hidden size
class MultinomialHalting(nn.Module):
    """`q = softmax(W h + b)`, once: of a mean (section 3.1), which is `size` wide where it is that of a source, or of the
    output of the first layer (3.2)."""

    def __init__(self, config: DepthAdaptiveTransformerConfig, size: int | None = None):
        super().__init__()
        self.reads = 0 if config.halting == "sequence" else 1
        self.proj = nn.Linear(config.hidden_size if size is None else size, config.num_hidden_layers)

    def learning_rate_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"halting": [*self.parameters()]}

    def log_probs(self, states: list[torch.Tensor]) -> torch.Tensor:
        """log q `(B, T, N)` from the mean embedding `(B, 1, E)` and the outputs of the layers, each `(B, T, E)`."""
        return self.proj(states[self.reads]).log_softmax(-1)

    def exit_layer(self, number: int, states: torch.Tensor) -> torch.Tensor | None:
        """The layer after which tokens leave, as the states after layer `number` show it; None: they show nothing."""
        return self.proj(states).argmax(-1) + 1 if number == self.reads else None


class GeometricHalting(nn.Module):
    """To leave or to stay, after every layer but the last: section 3.2.

    chi_n = sigmoid(w_n . h_n + b_n)      q(n) = chi_n prod_{m<n} (1 - chi_m)      q(N) = prod_{m<N} (1 - chi_m)
    """

    def __init__(self, config: DepthAdaptiveTransformerConfig):
        super().__init__()
        self.num_layers = config.num_hidden_layers
        self.proj = nn.Linear(config.hidden_size, self.num_layers - 1)

    def learning_rate_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"halting": [*self.parameters()]}

    def score(self, number: int, states: torch.Tensor) -> torch.Tensor:
        """`w_n . h_n + b_n` after layer `number`."""
        return self.proj(states)[..., number - 1]

    def log_probs(self, states: list[torch.Tensor]) -> torch.Tensor:
        """log q `(B, T, N)` from the mean embedding and the outputs of the layers."""
        scores = torch.stack([self.score(n, states[n]) for n in range(1, self.num_layers)], dim=-1)
        leaves, stays = nn.functional.logsigmoid(scores), nn.functional.logsigmoid(-scores).cumsum(-1)
        # one more layer: nobody has left before the first, and all who are left leave after the last
        return nn.functional.pad(leaves, (0, 1)) + nn.functional.pad(stays, (1, 0))

    def exit_layer(self, number: int, states: torch.Tensor) -> torch.Tensor | None:
        """The layer after which tokens leave, as the states after layer `number` show it; None: they show nothing."""
        if not 0 < number < self.num_layers:
            return None
        return torch.where(self.score(number, states) > 0, number, self.num_layers)


HALTING_NETWORKS = {"sequence": MultinomialHalting, "multinomial": MultinomialHalting, "geometric": GeometricHalting}


def correctness(logits: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """1 where the target is a layer's most likely token, else 0, `(N, B, T)`, float32 at least: bfloat16 counts to 256."""
    return torch.stack(
        [(each.argmax(-1) == targets).to(torch.promote_types(each.dtype, torch.float32)) for each in logits]
    )


def smooth(scores: torch.Tensor, sigma: float) -> torch.Tensor:
    """`sum_s exp(-(t - s)^2 / sigma) scores[s]` over the positions s of `(N, B, T)`."""
    positions = torch.arange(scores.shape[-1], device=scores.device, dtype=scores.dtype)
    kernel = torch.exp(-((positions[:, None] - positions) ** 2) / sigma)
    kind = scores.device.type
    is_rounded = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if is_rounded else nullcontext():  # layers differ by little
        return scores @ kernel


def oracle_layers(scores: torch.Tensor, penalty: float, sigma: float | None) -> torch.Tensor:
    """The best layer, 1..N, the smallest of several: `argmax_n score_n - penalty n`.

    Args:
        scores: `(N, B, T)`, as `prediction_scores` makes them.
        penalty: what a layer costs.
        sigma: width of the kernel that a token's neighbours count by: `(B, T)` is returned. None: one layer for all of a
            row, by the sum of its scores, `(B, 1)`.
    """
    scores = scores.sum(-1, keepdim=True) if sigma is None else smooth(scores, sigma)
    numbers = torch.arange(1, len(scores) + 1, device=scores.device)
    return (scores - penalty * numbers[:, None, None]).argmax(0) + 1


def read_mean(hidden_states: torch.Tensor, mean: torch.Tensor, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of all embeddings that each position's text has shown, up to itself; in an encoder, of all of the text.

    Args:
        hidden_states: `(B, T, E)`.
        mean: `(B, E)`, of the embeddings before the segment. A mean rather than a sum: in bfloat16, where numbers stop
            growing at 256, it turns into a moving mean.
        segment: where the tokens stand.

    Returns:
        Means `(B, T, E)`, and those after the segment, `(B, E)`.
    """
    columns = segment.columns
    last = columns if segment.last is None else segment.last
    seen = (columns <= last[..., None]) & (columns >= segment.start[..., None])  # (B or 1, T, T)
    seen = (seen if segment.mask is None else seen & segment.mask[:, None]).to(hidden_states)
    number = segment.tokens_read.clamp(max=int(2 / torch.finfo(mean.dtype).eps)).to(hidden_states)[:, None, None]
    if segment.document_ids is not None:
        number = number * (segment.document_ids == 0)[..., None]
    means = (mean[:, None] * number + seen @ hidden_states) / (number + seen.sum(-1, keepdim=True)).clamp(min=1)
    return means, means[:, -1]


__all__ = [
    "HALTING_NETWORKS",
    "GeometricHalting",
    "MultinomialHalting",
    "correctness",
    "oracle_layers",
    "read_mean",
    "smooth",
]
