"""A translator whose decoder of four layers may be left after each of them, trained on the predictions of all layers
(aligned) or along random exits (mixed); tokens leave by the confidence of a layer, by a learned choice for each token
(geometric), or for a whole sentence (multinomial of the mean word). Beside it the same decoder without exits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from claim_runs import Claim, Record, Records, Session, Verdict, main, ruled
from translation_runs import SETTINGS, differences, held_out, multi30k, scored, shown, trained

from transformers_xl import MemoryForConditionalGeneration

LAYERS, HALF, LOSS = 4, 2.0, 1.0  # LOSS: of BLEU, which "equal" allows
THRESHOLDS = (0.9, 0.7, 0.5, 0.35)
PLAIN = SETTINGS | {"variant": "transformer_xl", "decoder_fields": {"num_hidden_layers": LAYERS}}


def adaptive(exit_training: str = "aligned", **fields: Any) -> dict[str, Any]:
    fields |= {"num_hidden_layers": LAYERS, "exit_training": exit_training}
    return PLAIN | {"decoder": "depth_adaptive_transformer", "decoder_fields": fields}


EXITS = {
    "aligned, by confidence": adaptive(),
    "mixed, by confidence": adaptive("mixed", num_exit_paths=3),
    "aligned, by token": adaptive(halting="geometric"),
    "aligned, by sentence": adaptive(halting="sequence"),
}
RUNS = {"no exits": PLAIN} | EXITS


def of_tokens(layers: torch.Tensor) -> torch.Tensor:
    """Without padding, which has 0."""
    return layers[layers > 0]


@contextmanager
def layers_used(model: MemoryForConditionalGeneration) -> Iterator[list[torch.Tensor]]:
    """The layers after which tokens leave while the decoder runs, of each call."""
    found: list[torch.Tensor] = []
    hook = model.model.register_forward_hook(lambda _, inputs, output: found.append(of_tokens(output["exit_layers"])))
    try:
        yield found
    finally:
        hook.remove()


def measure(session: Session, settings: dict[str, Any], seed: int) -> Record:
    """By confidence: with the threshold that is best on sentences for validation, of those that use half of the layers; the
    lowest one where none does. At full depth too."""
    model, words, record = trained(session, settings, seed)
    test, config = held_out(session, settings), model.decoder.config
    if "decoder" not in settings:
        return record | scored(model, words, test)
    record["BLEU at full depth"] = scored(model, words, test)["BLEU"]
    if config.halting is not None:
        config.exit_by_halting = True
    else:
        tried = []
        for threshold in THRESHOLDS:
            config.confidence_thresholds = threshold
            with layers_used(model) as used:
                bleu = scored(model, words, held_out(session, settings, "val"))["BLEU"]
            tried.append((float(torch.cat(used).float().mean()), bleu, threshold))
        few = [each for each in tried if each[0] <= HALF] or [min(tried)]
        config.confidence_thresholds = record["threshold"] = max(few, key=lambda each: each[1])[2]
    with layers_used(model) as used:
        record |= scored(model, words, test)
    return record | {"layers": round(float(torch.cat(used).float().mean()), 2)}


def verdict(records: Records) -> Verdict:
    found = differences(records, [(run, "no exits") for run in EXITS])
    equal, fewer = [], []
    for run in EXITS:
        _, low, high = found[f"{run} against no exits"]
        few = max(records.of(run, "layers")) <= HALF
        equal.append(few and low > -LOSS)
        fewer.append(not few or high < -LOSS)
    layers = ", ".join(f"{run} {records.shown(run, 'layers', 2)}" for run in EXITS)
    return Verdict(ruled(any(equal), all(fewer)), f"layers of {LAYERS}: {layers}; {shown(records, found)}", found)


CLAIM = Claim(
    name="exits_translation",
    says="A translation needs half of the decoder's layers",
    source="[Elbayad et al., 2020](https://arxiv.org/abs/1910.10073), sections 3 and 4, figure 3",
    held_if="of one way to exit, every seed uses at most half of the layers, and the interval of its BLEU (for other seeds "
    "and sentences) against the decoder without exits lies above -1",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=None,
    beyond="Thresholds are chosen on 500 sentences for validation; the penalty of the oracle is its default. The paper's "
    "six layers are trained a hundred times as long, and a quarter of them suffices.",
    text=multi30k,
)

if __name__ == "__main__":
    main(CLAIM)
