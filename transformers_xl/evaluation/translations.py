"""What a translation is worth: BLEU and chrF as sacrebleu counts them, which papers can be compared by."""

from collections.abc import Sequence
from typing import Any

import torch

from transformers_xl.data.pairs import text_ids


@torch.no_grad()
def translate(
    model: Any, tokenizer: Any, texts: Sequence[str], num_beams: int = 4, batch_size: int = 32, **options: Any
) -> list[str]:
    """The translation of each text, each on its own, as one line; an empty one is that of an empty text.

    Args:
        model: an encoder-decoder.
        tokenizer: of both sides.
        texts: sentences.
        num_beams: of beam search; 1: the most likely token each time.
        batch_size: texts that are read at once, of like length.
        options: of `generate()`; twice as many tokens as the longest source has, and 16, when they do not say it.
    """
    order = [index for index in range(len(texts)) if texts[index].strip()]
    order.sort(key=lambda index: len(texts[index]))
    found = [""] * len(texts)
    for start in range(0, len(order), batch_size):
        here = order[start : start + batch_size]
        rows = [text_ids(tokenizer, texts[index]) for index in here]
        batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(model.device)
        asked = {"max_new_tokens": 2 * batch["input_ids"].shape[1] + 16, "num_beams": num_beams} | options
        made = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **asked)
        for index, text in zip(here, tokenizer.batch_decode(made, skip_special_tokens=True), strict=True):
            found[index] = " ".join(text.split("\n")).strip()
    return found


def score_translations(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """`bleu` and `chrf` (0 to 100) of a corpus, and the `signature` that says how BLEU was counted.

    Raises:
        ValueError: sacrebleu is not installed, or the numbers of texts differ.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ValueError("BLEU and chrF need the package sacrebleu, of the extra `translation`.") from error
    if len(translations) != len(references):
        raise ValueError(f"`translations` are {len(translations)}, `references` {len(references)}: give one each.")
    bleu, chrf = BLEU(), CHRF()
    score = bleu.corpus_score(list(translations), [list(references)])
    of_characters = chrf.corpus_score(list(translations), [list(references)])
    return {
        "bleu": round(score.score, 2),
        "chrf": round(of_characters.score, 2),
        "signature": str(bleu.get_signature()),
    }


__all__ = ["score_translations", "translate"]
