"""A softmax in which frequent words cost little: Grave et al., 2017, https://arxiv.org/abs/1609.04309.

Frequent words and one entry for each cluster of rare ones stand in the head; the words of a cluster share its probability:

    log p(w) = log softmax(head)[w]                                              w among the frequent
    log p(w) = log softmax(head)[cluster i] + log softmax(tail i)[w]             w in cluster i

Differs from the original: its clusters read the hidden states at widths that the embedding's clusters have (Baevski &
Auli, 2019, https://arxiv.org/abs/1809.10853), and are tied to them. Cluster i has entry i of those after the frequent
words; Transformer-XL's released code reads entry -i, and checkpoints of it are turned round where they are converted.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.adaptive_embedding import Projection, cluster_projections, uses_adaptive_softmax
from transformers_xl.modeling.layers.token_loss import cross_entropy_in_slices, token_cross_entropy

ROWS = 16  # tokens whose log-probabilities are made at a time, where no gradient is asked for


class TiedLinear(nn.Module):
    """The linear map of a cluster in a model with tied words, whose `weight` `(words, width)` is that of the embedding.

    It is no `nn.Linear`: what merges adapters into such layers, or quantizes them, would change the embedding too.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias: nn.Parameter | None = nn.Parameter(torch.empty(out_features)) if bias else None

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def init_weights(self, config: AdaptiveSoftmaxConfig) -> None:
        init.normal_(self.weight, mean=0.0, std=config.initializer_range)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(hidden_states, self.weight, self.bias)

    def resize(self, resized: Callable[..., nn.Linear], size: int, mean_resizing: bool) -> "TiedLinear":
        """Itself, with the weight and bias that transformers' `resized` makes of a linear layer that has its own."""
        layer = nn.Linear(self.weight.shape[1], self.out_features, self.bias is not None, device="meta")
        for name in ("weight", "bias"):
            setattr(layer, name, getattr(self, name))
        layer = resized(layer, size, mean_resizing=mean_resizing)
        for name in ("weight", "bias"):
            setattr(self, name, getattr(layer, name))
        return self


class AdaptiveSoftmax(nn.Module):
    """Hidden states `(batch, length, hidden_size)` to log-probabilities `(batch, length, vocab_size)` in nats."""

    def __init__(self, config: AdaptiveSoftmaxConfig, bias: bool):
        super().__init__()
        layer = TiedLinear if config.tie_word_embeddings else nn.Linear
        self.clusters = nn.ModuleList([layer(width, size, bias=bias) for size, width in config.clusters])
        self.tails = nn.Linear(config.clusters[0][1], len(config.cutoffs), bias=bias) if config.cutoffs else None
        self.projections = cluster_projections(config)

    @property
    def sizes(self) -> list[int]:
        """Words of each cluster."""
        return [cast(int, cluster.out_features) for cluster in self.clusters]

    @property
    def out_features(self) -> int:
        return sum(self.sizes)

    def resize_last_cluster(self, resized: Callable[..., nn.Linear], size: int, mean_resizing: bool) -> None:
        """Let the vocabulary have `size` words, by transformers' `resized`, which resizes linear layers."""
        last, size = self.clusters[-1], size - sum(self.sizes[:-1])
        if isinstance(last, TiedLinear):
            self.clusters[-1] = last.resize(resized, size, mean_resizing)
        else:
            self.clusters[-1] = resized(last, size, mean_resizing=mean_resizing)

    def project(self, index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        return cast(Projection, self.projections[index]).down(hidden_states) if self.projections else hidden_states

    def head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the frequent words, then of the other clusters, float32 at least."""
        projected = self.project(0, hidden_states)
        logits = self.clusters[0](projected)
        if self.tails is not None:
            logits = torch.cat([logits, self.tails(projected)], dim=-1)
        return _log_softmax(logits)

    def tail(self, index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the words of a cluster within it."""
        return _log_softmax(self.clusters[index](self.project(index, hidden_states)))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.cat([*self.parts(hidden_states)], dim=-1)
        # a few rows at a time, into one buffer: of a large vocabulary nothing is there twice
        rows = hidden_states.flatten(0, -2)
        log_probs = rows.new_empty(len(rows), self.out_features)
        for some, target in zip(rows.split(ROWS), log_probs.split(ROWS), strict=True):
            start = 0
            for part in self.parts(some):
                target[:, start : start + part.shape[-1]] = part
                start += part.shape[-1]
        return log_probs.unflatten(0, hidden_states.shape[:-1])

    def parts(self, hidden_states: torch.Tensor) -> Iterator[torch.Tensor]:
        """Log-probabilities of the words of each cluster in turn."""
        frequent = self.sizes[0]
        head = self.head(hidden_states)
        yield head[..., :frequent].to(hidden_states.dtype)
        for index in range(1, len(self.clusters)):
            tail = self.tail(index, hidden_states) + head[..., frequent + index - 1, None]
            yield tail.to(hidden_states.dtype)

    def cross_entropy(
        self, hidden_states: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0
    ) -> torch.Tensor:
        """`-log p` of `targets` `(batch, length)`, in their order, float32 at least; 0 where the target is -100.
        `label_smoothing`, where there are no `cutoffs`: the share of a target that is spread over the vocabulary.

        Only the tokens of a cluster pay for its words: no tensor has a row per token and a column per word.
        """
        frequent, *rare = self.sizes
        flat, is_target = targets.flatten(), targets.flatten() != -100
        hidden_states = hidden_states.flatten(0, -2)[is_target]
        words = flat[is_target]
        start, in_cluster, column = frequent, [], words
        for index, size in enumerate(rare, start=1):
            here = (words >= start) & (words < start + size)
            in_cluster.append((index, start, here.nonzero().squeeze(-1)))
            column = torch.where(here, frequent + index - 1, column)
            start += size
        log_probs = self.head(hidden_states)
        losses = -log_probs.gather(-1, column[:, None]).squeeze(-1)
        if label_smoothing:  # the head has all words
            losses = losses.lerp(-log_probs.mean(-1), label_smoothing)
        for index, start, here in in_cluster:
            # also for no rows: every process of many has a gradient for every weight
            for rows in [here] if torch.is_grad_enabled() else here.split(ROWS):
                tail = self.tail(index, hidden_states[rows]).gather(-1, (words[rows] - start)[:, None]).squeeze(-1)
                losses = losses.index_add(0, rows, -tail)
        return losses.new_zeros(flat.shape).masked_scatter(is_target, losses).view(targets.shape)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def output_layer(config: MemoryConfig, bias: bool) -> nn.Module:
    """What turns hidden states into logits: a linear map, or an adaptive softmax."""
    if uses_adaptive_softmax(config):
        return AdaptiveSoftmax(config, bias)
    return nn.Linear(config.token_width, config.vocab_size, bias=bias)


def tied_weights(config: AdaptiveSoftmaxConfig) -> dict[str, str]:
    """The weights of a language model's adaptive softmax that are those of its embedding: name -> name."""
    count = len(config.clusters)
    tied_projs = config.tie_projs if isinstance(config.tie_projs, list) else [config.tie_projs] * count
    ties = {}
    for index in range(count):
        source = index if config.div_val > 1 else 0  # clusters of the same width share a projection
        if config.tie_word_embeddings:
            ties[f"lm_head.clusters.{index}.weight"] = f"model.embed_tokens.tables.{index}.weight"
        if config.projected_clusters[index] and tied_projs[index]:
            ties[f"lm_head.projections.{index}.weight"] = f"model.embed_tokens.projections.{source}.weight"
    return ties


def linear_cross_entropy(
    classifier: nn.Module,
    hidden_states: torch.Tensor | None,
    targets: torch.Tensor,
    logits: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`-log p` of `targets` `(batch, length)` by what `classifier` makes of the hidden states (`logits`, where they are
    known), float32 at least; 0 where the target is -100. `label_smoothing` is for a softmax without clusters."""
    if logits is not None:
        return token_cross_entropy(logits, targets, label_smoothing)
    states = cast(torch.Tensor, hidden_states)  # there, where no logits are
    if isinstance(classifier, AdaptiveSoftmax):
        return classifier.cross_entropy(states, targets, label_smoothing)
    size = cast(int, classifier.out_features)
    return cross_entropy_in_slices(classifier, states, targets, size, label_smoothing)


def mean_loss(
    token_losses: torch.Tensor, targets: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Their mean over the tokens that have a target, or over the number of a whole batch, as transformers' loss has it."""
    items = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return token_losses.sum() / (items.to(token_losses.device) if isinstance(items, torch.Tensor) else items)
