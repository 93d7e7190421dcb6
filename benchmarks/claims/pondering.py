"""A Universal Transformer of at most four steps ponders over each byte as long as it likes, at 0.01 or 0.001 nats a step:
the cost of the quarter of held-out bytes that were hardest to predict against that of the easiest, each at the place that
predicts it."""

import math
from dataclasses import replace

import numpy as np
import torch
from claim_runs import TERMS, Claim, Record, Records, Run, Session, Verdict, bits, main, ruled
from matplotlib.figure import Figure
from torch.nn import functional as F

from transformers_xl.evaluation.plots import figure, line
from transformers_xl.evaluation.reading import read_in_segments

FOUR = replace(TERMS, layers=4)
RUNS = {
    "0.01 a step": Run("universal_transformer", FOUR, {"halting_bias": 0.0}),
    "0.001 a step": Run("universal_transformer", FOUR, {"halting_bias": 0.0, "ponder_loss_coef": 0.001}),
}
LEAST = 0.05  # steps
GROUPS = 8


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Spearman's, of values without ties."""
    ranks = torch.stack([values.argsort().argsort() for values in (first, second)])
    return torch.corrcoef(ranks.double())[0, 1].item()


def measure(session: Session, run: Run, seed: int) -> Record:
    model, training = session.trained(run, seed)
    held_out = session.held_out(16_384)
    outputs = [output for _, output in read_in_segments(model, held_out[:-1], output_halting=True, logits_to_keep=0)]
    cost = torch.cat([output.ponder_cost[0] for output in outputs]).float()
    logits = torch.cat([output.logits[0] for output in outputs]).float()
    nats = F.cross_entropy(logits, torch.from_numpy(held_out[1:].astype(np.int64)), reduction="none")
    order = nats.argsort()
    groups = [round(group.mean().item(), 4) for group in cost[order].tensor_split(GROUPS)]
    found = {
        "easy": sum(groups[:2]) / 2,
        "hard": sum(groups[-2:]) / 2,
        "correlation": round(rank_correlation(nats, cost), 4),
        "groups": groups,
        "bits of groups": [round(group.mean().item() / math.log(2), 4) for group in nats[order].tensor_split(GROUPS)],
    }
    return {**training, "bits": bits(model, session.held_out()), **found}


def verdict(records: Records) -> Verdict:
    held = {
        run: all(row["hard"] > row["easy"] + LEAST and row["correlation"] > 0 for row in rows)
        for run, rows in records.items()
    }
    shown = [
        f"at {run}, steps on the hardest quarter {records.shown(run, 'hard', 2)}, on the easiest "
        f"{records.shown(run, 'easy', 2)}, rank correlation with the loss {records.shown(run, 'correlation', 2)}"
        for run in RUNS
    ]
    opposite = all(row["hard"] < row["easy"] for rows in records.values() for row in rows)
    return Verdict(ruled(any(held.values()), opposite), "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure()
    for index, (run, rows) in enumerate(records.items()):
        for number, row in enumerate(rows):
            label = f"{run}, a line for each seed" if number == 0 else None
            axes.plot(row["bits of groups"], row["groups"], label=label, **line(index, len(records)))
    axes.set(xlabel="bits that the next byte costs, mean of an eighth of all bytes", ylabel="ponder cost, steps")
    axes.set_ylim(0, 5)
    axes.legend()
    return picture


CLAIM = Claim(
    name="pondering",
    says="Adaptive computation time ponders over hard tokens",
    source="[Dehghani et al., 2019](https://arxiv.org/abs/1807.03819), sections 2.2 and 3; "
    "[Graves, 2016](https://arxiv.org/abs/1603.08983)",
    held_if=f"at one of two prices, every seed takes {LEAST} steps more over the hardest quarter than over the easiest, "
    "with a rank correlation above 0",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="Bytes of program text in place of the paper's questions (bAbI). The lower price was tried after the "
    "other had shown no pondering.",
)

if __name__ == "__main__":
    main(CLAIM)
