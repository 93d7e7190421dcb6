"""A translator of 3 + 3 layers, pre- and post-norm, with a linear warm-up of the learning rate over a quarter of the steps
and without one; no clipping of gradients."""

from claim_runs import Claim, Records, Verdict, main, ruled
from translation_runs import SETTINGS, differences, measure, multi30k, shown

DEEP = SETTINGS | {"layers": 3, "clip": 1e9, "variant": "transformer_xl"}  # a norm that none has: nothing is clipped
NEED = 1.0  # BLEU: less is none
RUNS = {
    f"{norm}-norm, {'' if warm else 'no '}warm-up": DEEP | {"warm": warm, "fields": {"norm_position": norm}}
    for norm in ("pre", "post")
    for warm in (0.0, 0.25)
}


def verdict(records: Records) -> Verdict:
    pre, pre_warm, post, post_warm = RUNS
    found = differences(records, [(pre_warm, pre), (post_warm, post), (pre, post)])
    of_pre, of_post, _ = found.values()
    held = of_pre[2] < NEED and of_post[1] > 0
    opposite = of_pre[1] > 0 or of_post[2] < 0
    return Verdict(ruled(held, opposite), shown(records, found), found)


CLAIM = Claim(
    name="norms_translation",
    says="A pre-norm translator needs no warm-up, a post-norm one does",
    source="[Xiong et al., 2020](https://arxiv.org/abs/2002.04745), sections 3.2 and 4.1, figures 2 and 5",
    held_if="the interval of BLEU (for other seeds and sentences) that a warm-up adds lies above zero with post-norm, and "
    "below 1 with pre-norm",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=None,
    beyond="Three layers of width 128 at one rate, 0.003, which is three times the paper's: post-norm's half of the claim "
    "is so here, and pre-norm needs a warm-up too.",
    given="0.003",
    text=multi30k,
)

if __name__ == "__main__":
    main(CLAIM)
