"""Two feed-forwards of half the inner width, each counted by half, around the attention, against one of whole width after
it, in the encoder and in the decoder of a translator: the same parameters but for a norm and a bias in each layer."""

from claim_runs import Claim, Records, Verdict, main, ruled
from translation_runs import SETTINGS, differences, measure, multi30k, shown

WHOLE = 4 * SETTINGS["width"]
RUNS = {
    "Macaron": SETTINGS | {"variant": "macaron", "fields": {"intermediate_size": WHOLE // 2}},
    "Transformer-XL": SETTINGS | {"variant": "transformer_xl", "fields": {"intermediate_size": WHOLE}},
}


def verdict(records: Records) -> Verdict:
    found = differences(records, [("Macaron", "Transformer-XL")])
    ((_, low, high),) = found.values()
    return Verdict(ruled(low > 0, high < 0), shown(records, found), found)


CLAIM = Claim(
    name="macaron_translation",
    says="A Macaron layer translates better than an ordinary one of equal parameters",
    source="[Lu et al., 2019](https://arxiv.org/abs/1906.02762), section 4.1 and table 1",
    held_if="the interval of BLEU (for other seeds and sentences) of Macaron above the other lies above zero",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=None,
    beyond="Both have the positions of Transformer-XL, which the paper's models have not. The paper's gain is 1 to 2 BLEU "
    "with 6 + 6 layers and a hundred times the data.",
    text=multi30k,
)

if __name__ == "__main__":
    main(CLAIM)
