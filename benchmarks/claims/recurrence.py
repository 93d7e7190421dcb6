"""A program's log (that of Python while it imports torch and transformers), whose names come again some hundred bytes
later. A model with a memory of 192 bytes that grows, as `transformers-xl train` lets it, against the same model
without: at the same bytes, with two thirds more, which take about as long, and in segments as long as segment and
memory together. Without memory, text is read in segments as in training and in windows whose first half is read again
(twice the reading); the better way counts."""

from dataclasses import replace

from claim_runs import TERMS, Claim, Record, Records, Run, Session, Verdict, bits, draw_seeds, import_log, main, ruled
from matplotlib.figure import Figure

from transformers_xl.evaluation.context_curve import score_windows
from transformers_xl.evaluation.plots import figure


def runs_of(steps: int) -> dict[str, Run]:
    memory = replace(TERMS, mem_len=192, steps=steps)
    none = replace(memory, mem_len=0)
    return {
        "with memory": Run("transformer_xl", memory, initial_mem_len=16),
        "without": Run("transformer_xl", none),
        "without, more steps": Run("transformer_xl", replace(none, steps=steps * 5 // 3)),
        "without, segments of 256": Run("transformer_xl", replace(none, segment_length=256, batch_size=4)),
    }


def measure(session: Session, run: Run, seed: int) -> Record:
    model, training = session.trained(run, seed)
    held_out = session.held_out()
    if run.terms.mem_len:
        return {**training, "bits": bits(model, held_out), "bits without": bits(model, held_out, memory=False)}
    half = run.terms.segment_length // 2
    windows = score_windows(model, held_out, half, half, 4).bits_per_byte
    alone = bits(model, held_out, memory=False)
    return {
        **training,
        "bits in segments": alone,
        "bits in windows": round(windows, 4),
        "bits": round(min(alone, windows), 4),
    }


def verdict(records: Records) -> Verdict:
    held = all(records.below("with memory", other, "bits") for other in list(records)[1:])
    opposite = any(records.below(other, "with memory", "bits") for other in list(records)[1:])
    shown = [f"{run} {records.shown(run, 'bits')}, {records.shown(run, 'seconds', 0)} s" for run in records]
    return Verdict(ruled(held, opposite), "bits per byte and seconds of training: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=7, height=2.5)
    draw_seeds(axes, records, "bits")
    axes.set(xlabel="bits per byte of held-out text (not from 0)")
    return picture


CLAIM = Claim(
    name="recurrence",
    says="Recurrence lowers bits per byte: a text that repeats itself",
    source="[Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 4.2, tables 6 and 7",
    held_if="every seed with memory is below every seed of each model without",
    runs=runs_of(1200),
    measure=measure,
    verdict=verdict,
    draw=draw,
    no_power="The memory grows from 16 bytes, which [memory_worth.md](memory_worth.md#the-first-steps) advises "
    "against for a text that repeats itself far back: a growing memory has its whole length for half of "
    "the steps only.",
    beyond="A memory of 192 bytes from the first step on, and a larger model: `transformers-xl compare PLAN -o "
    "FOLDER`.",
    text=import_log,
)

if __name__ == "__main__":
    main(CLAIM)
