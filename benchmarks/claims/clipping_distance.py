"""An encoder-decoder of 2 + 2 layers of width 128 whose encoder and decoder have Shaw's positions, clipped at 0, 2, 4 and
16, on English-German captions (Multi30k, which is no part of this project: give its folder as `--text`). With 0 all
distances share one vector, and the encoder reads a bag of words. Translated greedily, scored by sacrebleu."""

from typing import Any

import translation_runs
from claim_runs import Claim, Record, Records, Session, Verdict, main, ruled
from translation_runs import SETTINGS, differences, held_out, multi30k, nearest, read, scores, shown

from transformers_xl import MemoryForConditionalGeneration

RUNS = {f"k = {k}": SETTINGS | {"k": k} for k in (0, 2, 4, 16)}


def build(settings: dict[str, Any]) -> MemoryForConditionalGeneration:
    fields = {"max_relative_distance": settings["k"]}
    return translation_runs.build(settings | {"variant": "shaw_transformer", "fields": fields})


def measure(session: Session, settings: dict[str, Any], seed: int) -> Record:
    record = translation_runs.measure(session, settings, seed, build)
    if seed == 0 and settings["k"] == 0:  # the floors hang on no model
        sources, references = held_out(session, settings)
        floors = {"copy": sources, "nearest training pair": nearest(read(session.text, "train"), sources)}
        record["floors"] = {name: scores(texts, references)["BLEU"] for name, texts in floors.items()}
    return record


def verdict(records: Records) -> Verdict:
    above = [(f"k = {k}", "k = 0") for k in (2, 4, 16)]
    found = differences(records, [*above, ("k = 16", "k = 2")])
    ends = [found[f"{better} against {worse}"][1:] for better, worse in above]
    floors = ", ".join(f"{name} {bleu:.1f}" for name, bleu in records["k = 0"][0]["floors"].items())
    held = ruled(min(low for low, _ in ends) > 0, max(high for _, high in ends) < 0)
    return Verdict(held, f"{shown(records, found)}; floors {floors}", found)


CLAIM = Claim(
    name="clipping_distance",
    says="A translation needs positions of Shaw et al., but not far ones",
    source="[Shaw et al., 2018](https://arxiv.org/abs/1803.02155), section 4.3 and table 2",
    held_if="the intervals of BLEU (for other seeds and sentences) of k = 2, 4 and 16 above k = 0 lie above zero",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=None,
    beyond="One size, one corpus of short captions, less than an epoch: k = 2 against 16 says little about long "
    "sentences. The paper's BLEU is of another corpus.",
    text=multi30k,
)

if __name__ == "__main__":
    main(CLAIM)
