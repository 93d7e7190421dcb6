"""A translator whose decoder of four layers may be left after each of them, trained on the predictions of all layers
(aligned) or along random exits (mixed); tokens leave by the confidence of a layer, or by a learned choice (geometric: at
each layer; multinomial: once, after the first; whole sentence: once for all tokens, by the encoder's mean). Beside it the
same decoder without exits."""

from typing import Any

import torch
from claim_runs import Claim, Record, Records, Session, Verdict, main, ruled
from tokenizers import Tokenizer
from translation_runs import (
    END,
    SETTINGS,
    differences,
    held_out,
    multi30k,
    scored,
    scores,
    shown,
    trained,
    translate,
)

from transformers_xl import MemoryForConditionalGeneration

LAYERS, HALF, LOSS = 4, 2.0, 1.0  # LOSS: of BLEU, which "equal" allows
THRESHOLDS = (0.9, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
PLAIN = SETTINGS | {"variant": "transformer_xl", "decoder_fields": {"num_hidden_layers": LAYERS}}


def adaptive(exit_training: str = "aligned", **fields: Any) -> dict[str, Any]:
    fields |= {"num_hidden_layers": LAYERS, "exit_training": exit_training}
    settings = PLAIN | {"decoder": "depth_adaptive_transformer", "decoder_fields": fields}
    return settings if "halting" in fields else settings | {"thresholds": THRESHOLDS}


EXITS = {
    "aligned, by confidence": adaptive(),
    "mixed, by confidence": adaptive("mixed", num_exit_paths=3),
    "aligned, geometric": adaptive(halting="geometric"),
    "aligned, multinomial": adaptive(halting="multinomial"),
    # the default, for a sentence of twenty tokens
    "aligned, whole sentence": adaptive(halting="sequence", oracle_penalty=1.0),
}
RUNS = {"no exits": PLAIN} | EXITS


class ExitCounter:
    """The layers after which the tokens of translations leave the decoder, their ends included."""

    def __init__(self, model: MemoryForConditionalGeneration):
        self.calls: list[torch.Tensor] = []
        self.layers: list[torch.Tensor] = []
        model.model.register_forward_hook(lambda _, inputs, output: self.calls.append(output["exit_layers"]))

    def count(self, sequences: torch.Tensor) -> None:
        """Of a batch that was translated to `(rows, length)` ids: a row that has ended reads on, which does not count."""
        layers, is_end = torch.cat(self.calls, 1), sequences[:, 1:] == END
        going_on = is_end.cumsum(1) - is_end.long() == 0
        self.layers.append(layers[going_on[:, : layers.shape[1]]])
        self.calls.clear()

    def translate(self, model: MemoryForConditionalGeneration, words: Tokenizer, pairs: list[list[str]]) -> Record:
        """The scores of translations, and the mean of `layers`."""
        self.calls.clear()
        self.layers.clear()
        found = scores(translate(model, words, pairs[0], self.count), pairs[1])
        return found | {"layers": round(float(torch.cat(self.layers).float().mean()), 2)}


def measure(session: Session, settings: dict[str, Any], seed: int) -> Record:
    """By confidence: of the thresholds with which sentences for validation use half of the layers, the one that translates
    them best; where none does, the one that uses fewest. The scores at full depth too."""
    model, words, record = trained(session, settings, seed)
    test, config = held_out(session, settings), model.decoder.config
    whole = scored(model, words, test)
    if "decoder" not in settings:
        return record | whole
    counter = ExitCounter(model)
    record |= {"perplexity": whole["perplexity"], "BLEU at full depth": whole["BLEU"]}
    if config.halting is not None:
        config.exit_by_halting = True
        return record | counter.translate(model, words, test)
    tried = []
    for threshold in settings["thresholds"]:
        config.confidence_thresholds = threshold
        found = counter.translate(model, words, held_out(session, settings, "val"))
        tried.append((found["layers"], found["BLEU"], threshold))
    few = [each for each in tried if each[0] <= HALF] or [min(tried)]
    config.confidence_thresholds = record["threshold"] = max(few, key=lambda each: each[1])[2]
    return record | counter.translate(model, words, test)


def verdict(records: Records) -> Verdict:
    found = differences(records, [(run, "no exits") for run in EXITS])
    equal, worse = [], []
    for run in EXITS:
        _, low, high = found[f"{run} against no exits"]
        layers = records.of(run, "layers")
        equal.append(max(layers) <= HALF and low > -LOSS)
        worse.append(min(layers) > HALF or high < -LOSS)
    layers = ", ".join(f"{run} {records.shown(run, 'layers', 2)}" for run in EXITS)
    return Verdict(ruled(any(equal), all(worse)), f"layers of {LAYERS}: {layers}; {shown(records, found)}", found)


CLAIM = Claim(
    name="exits_translation",
    says="A translation needs half of the decoder's layers",
    source="[Elbayad et al., 2020](https://arxiv.org/abs/1910.10073), sections 3 and 4, figure 3",
    held_if="with any of the ways to exit, every seed uses at most half of the layers, and the interval of BLEU (for "
    "other seeds and sentences) against the decoder without exits lies above -1; not held if each way uses more "
    "in every seed, or its interval lies below -1",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=None,
    beyond="Thresholds are chosen on 500 sentences for validation; the penalty of the oracle is its default, for a whole "
    "sentence twenty times as much: its oracle adds up all tokens. The perplexity is at full depth. The paper's six "
    "layers are trained a hundred times as long, and a quarter of them suffices.",
    text=multi30k,
)

if __name__ == "__main__":
    main(CLAIM)
