"""A Universal Transformer of at most four steps ponders over each byte as long as it likes, at 0.01 nats a step: the
cost of the quarter of held-out bytes that were hardest to predict against that of the easiest, each at the place that
predicts it."""

import math
from dataclasses import replace

import numpy as np
import torch
from claim_runs import TERMS, Claim, Record, Records, Run, Session, Verdict, bits, main
from matplotlib.figure import Figure
from torch.nn import functional as F

from transformers_xl.evaluation.plots import figure
from transformers_xl.evaluation.reading import read_in_segments

RUNS = {"Universal Transformer": Run("universal_transformer", replace(TERMS, layers=4), {"halting_bias": 0.0})}
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
    (run,) = RUNS
    held = all(row["hard"] > row["easy"] and row["correlation"] > 0 for row in records[run])
    return Verdict(
        held,
        f"ponder cost of the hardest quarter {records.shown(run, 'hard', 2)}, of the easiest "
        f"{records.shown(run, 'easy', 2)}; rank correlation with the loss {records.shown(run, 'correlation', 2)}",
    )


def draw(records: Records) -> Figure:
    (rows,) = records.values()
    picture, ((axes,),) = figure()
    for row in rows:
        axes.plot(row["bits of groups"], row["groups"], "o-", color="black", alpha=0.4 + 0.2 * row["seed"])
    axes.set(xlabel="bits that the next byte costs, mean of an eighth of all bytes", ylabel="ponder cost (not from 0)")
    axes.set_title("A line for each seed")
    return picture


CLAIM = Claim(
    name="pondering",
    says="Adaptive computation time ponders over hard tokens",
    source="Dehghani et al., 2019, sections 2.2 and 3.1; Graves, 2016, section 3.5",
    held_if="in every seed the hardest quarter costs more than the easiest, and the rank correlation is above 0",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="Bytes of program text in place of the paper's questions (bAbI).",
)

if __name__ == "__main__":
    main(CLAIM)
