"""What claims share that translate: encoder-decoders of width 128 on English-German captions (Multi30k, which is no part of
this project: give its folder as `--text`), translated greedily, scored by sacrebleu, with intervals for other seeds and
sentences."""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claim_runs import FOLDER, Record, Records, Session, text_digest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import set_seed

from transformers_xl import MemoryEncoderDecoderConfig, MemoryForConditionalGeneration
from transformers_xl.modeling.auto import VARIANTS, encoder_of

PAD, START, END = 0, 1, 2
SETTINGS = {"layers": 2, "width": 128, "words": 2000, "steps": 400, "tokens": 1000, "rate": 3e-3, "tested": 500}
DRAWS = 2000  # of the bootstrap
Pairs = list[tuple[str, str]]
Builder = Callable[[dict[str, Any]], MemoryForConditionalGeneration]


def multi30k() -> Path:
    raise FileNotFoundError("give the folder with train, val and test_2016_flickr, each .en and .de, as `--text`.")


def read(folder: Path, split: str) -> Pairs:
    sides = [(folder / f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    return [(source.strip(), target.strip()) for source, target in zip(*sides, strict=True)]


def learn_words(texts: Iterable[str], words: int) -> Tokenizer:
    """Byte-level BPE."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=words, special_tokens=special, show_progress=False))
    return made


def tokenizer_of(folder: Path, words: int) -> Tokenizer:
    """Words of both languages, kept in `build/claims`."""
    path = FOLDER / f"words-{text_digest(folder)[:8]}-{words}.json"
    if not path.exists():
        made = learn_words((text for pair in read(folder, "train") for text in pair), words)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(str(path))
    return Tokenizer.from_file(str(path))


def build(settings: dict[str, Any]) -> MemoryForConditionalGeneration:
    """An encoder of a `variant` and its decoder, or another `decoder`; `fields` of both, and `decoder_fields`."""
    width, variant = settings["width"], settings["variant"]
    fields = {
        "vocab_size": settings["words"], "hidden_size": width, "num_hidden_layers": settings["layers"],
        "num_attention_heads": 4, "intermediate_size": 4 * width,
        "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END,
    } | settings.get("fields", {})  # fmt: skip
    encoder = encoder_of(variant).config_class(**fields)
    fields |= {"mem_len": 256} | settings.get("decoder_fields", {})
    decoder = VARIANTS[settings.get("decoder", variant)].config_class(**fields)
    return MemoryForConditionalGeneration(MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder))


def padded(rows: list[list[int]], pad: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


def batches(sides: list[list[list[int]]], tokens: int, steps: int):
    """`steps` batches of pairs of like length, with at most so many tokens of each side."""
    lengths = [max(map(len, pair)) for pair in zip(*sides, strict=True)]
    made: list[list[int]] = []
    for _ in range(steps):
        if not made:
            order = sorted(range(len(lengths)), key=lambda each: (lengths[each], random.random()))
            batch: list[int] = []
            for each in order:
                if batch and (len(batch) + 1) * lengths[each] > tokens:
                    made.append(batch)
                    batch = []
                batch.append(each)
            made = made or [batch]
            random.shuffle(made)
        here = made.pop()
        yield padded([sides[0][each] for each in here], PAD), padded([sides[1][each] for each in here], -100)


def train(model: MemoryForConditionalGeneration, sides: list[list[list[int]]], settings: dict[str, Any]) -> None:
    """AdamW, a line up (over `warm` of the steps, a tenth by default) and a line down, smoothed labels as in the paper.
    Gradients are clipped at a norm of `clip`, 1 by default."""
    steps, warm = settings["steps"], max(1, int(settings["steps"] * settings.get("warm", 0.1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["rate"], betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.02, (steps - step) / max(1, steps - warm)))
    )
    model.train()
    model.decoder.label_smoothing = 0.1
    for source, labels in batches(sides, settings["tokens"], steps):
        loss = model(source, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.get("clip", 1.0))
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def translate(
    model: MemoryForConditionalGeneration,
    tokenizer: Tokenizer,
    texts: list[str],
    note: Callable[[torch.Tensor], None] | None = None,
) -> list[str]:
    """The translations; `note` is called with the ids of each batch."""
    ids = ids_of(tokenizer, texts)
    order, made = sorted(range(len(ids)), key=lambda each: len(ids[each])), [""] * len(ids)
    for start in range(0, len(order), 100):
        here = order[start : start + 100]
        source = padded([ids[each] for each in here], PAD)
        sequences = model.generate(source, do_sample=False, max_new_tokens=int(1.6 * source.shape[1]) + 8)
        if note is not None:
            note(sequences)
        for each, sequence in zip(here, sequences.tolist(), strict=True):
            made[each] = tokenizer.decode(sequence).strip()
    return made


@torch.no_grad()
def perplexity(model: MemoryForConditionalGeneration, sides: list[list[list[int]]]) -> float:
    nats = count = 0.0
    for start in range(0, len(sides[0]), 100):
        labels = padded(sides[1][start : start + 100], -100)
        targets = int((labels != -100).sum())
        nats += float(model(padded(sides[0][start : start + 100], PAD), labels=labels).loss) * targets
        count += targets
    return float(np.exp(nats / count))


def statistics_of(texts: list[str], references: list[str]) -> np.ndarray:
    """What a corpus BLEU is made of, of each sentence `(sentences, 10)`: n-grams that match, n-grams, lengths."""
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """BLEU, 0 to 100, of what all sentences contribute, `(.., 10)`: a report needs no sacrebleu."""
    matching, counted, length, expected = sums[..., :4], sums[..., 4:8], sums[..., 8], sums[..., 9]
    brevity = np.minimum(0.0, 1 - expected / np.maximum(length, 1))
    precisions = np.log(np.maximum(matching, 1) / np.maximum(counted, 1)).mean(-1)
    return np.where(matching.all(-1), 100 * np.exp(brevity + precisions), 0.0)


def scores(texts: list[str], references: list[str]) -> Record:
    """BLEU and chrF, and what sentences contribute to BLEU, for the interval."""
    from sacrebleu.metrics import CHRF

    found = statistics_of(texts, references)
    return {
        "BLEU": round(float(bleu_of(found.sum(0))), 2),
        "chrF": round(CHRF().corpus_score(texts, [references]).score, 2),
        "sentences": " ".join(map(str, found.flatten().tolist())),
    }


def nearest(train_pairs: Pairs, texts: list[str]) -> list[str]:
    """The target of the training pair whose source shares most words with each text."""
    sources, made = [set(source.lower().split()) for source, _ in train_pairs], []
    for text in texts:
        words = set(text.lower().split())
        best = max(range(len(sources)), key=lambda each: len(words & sources[each]) / len(words | sources[each]))
        made.append(train_pairs[best][1])
    return made


def trained(
    session: Session, settings: dict[str, Any], seed: int, build: Builder = build
) -> tuple[MemoryForConditionalGeneration, Tokenizer, Record]:
    """A model, its words, and what its training came to."""
    set_seed(seed)
    settings = settings if session.steps is None else settings | {"steps": session.steps}
    tokenizer = tokenizer_of(session.text, settings["words"])
    sides = [ids_of(tokenizer, side) for side in zip(*read(session.text, "train"), strict=True)]
    model, start = build(settings), time.process_time()
    train(model, sides, settings)
    return model, tokenizer, {
        "seconds": round(time.process_time() - start, 1), "parameters": model.num_parameters()
    }  # fmt: skip


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [[*each.ids, END] for each in tokenizer.encode_batch(list(texts))]


def held_out(session: Session, settings: dict[str, Any], split: str = "test_2016_flickr") -> list[list[str]]:
    """Sources, and their translations."""
    count = settings["tested"] if session.steps is None else 20
    return [list(side) for side in zip(*read(session.text, split)[:count], strict=True)]


def scored(model: MemoryForConditionalGeneration, tokenizer: Tokenizer, pairs: list[list[str]]) -> Record:
    sources, references = pairs
    unseen = [ids_of(tokenizer, side) for side in pairs]
    found = {"perplexity": round(perplexity(model, unseen), 2)}
    return found | scores(translate(model, tokenizer, sources), references)


def measure(session: Session, settings: dict[str, Any], seed: int, build: Builder = build) -> Record:
    """The record of a run: the scores of what it makes of the test."""
    model, tokenizer, record = trained(session, settings, seed, build)
    return record | scored(model, tokenizer, held_out(session, settings))


def interval(records: Records, better: str, worse: str) -> tuple[float, float, float]:
    """How many points of BLEU one run has more than another, and the ends of its 95 % interval, for other seeds and
    sentences: sentences are drawn again for both together, seeds for each by itself, as in `runs/comparison_statistics.py`,
    and as there what a few seeds differ by is stretched. One seed says nothing: its interval is all that BLEU can be."""
    seeds = min(len(records[run]) for run in (better, worse))
    mean = statistics.mean(a - b for a, b in zip(records.of(better, "BLEU"), records.of(worse, "BLEU"), strict=False))
    if seeds == 1:
        return round(mean, 2), -100.0, 100.0
    generator, of_runs = np.random.default_rng(0), []
    for run in (better, worse):
        rows = [np.array(row["sentences"].split(), dtype=np.int64).reshape(-1, 10) for row in records[run][:seeds]]
        of_runs.append(np.stack(rows))
    sentences = of_runs[0].shape[1]
    chosen = generator.integers(0, sentences, (DRAWS, sentences))
    counts = np.stack([np.bincount(each, minlength=sentences) for each in chosen])
    drawn = []
    for sums in of_runs:
        of_seeds = bleu_of(np.tensordot(counts, sums, axes=(1, 1)))
        some = np.take_along_axis(of_seeds, generator.integers(0, seeds, (DRAWS, seeds)), 1).mean(1)
        whole = of_seeds.mean(1)
        drawn.append(whole + (seeds / (seeds - 1)) ** 0.5 * (some - whole))
    low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
    return round(mean, 2), round(float(low), 2), round(float(high), 2)


def differences(records: Records, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[float, float, float]]:
    """The intervals of pairs of runs, by name."""
    return {f"{better} against {worse}": interval(records, better, worse) for better, worse in pairs}


def shown(records: Records, found: dict[str, tuple[float, float, float]]) -> str:
    """The scores of all runs, and the intervals of their differences."""
    rows = [
        f"{run} BLEU {records.shown(run, 'BLEU', 1)}, chrF {records.shown(run, 'chrF', 1)}, perplexity "
        f"{records.shown(run, 'perplexity', 1)}"
        for run in records
    ]
    rows += [f"{name} {mean:+.1f} BLEU ({low:+.1f} to {high:+.1f})" for name, (mean, low, high) in found.items()]
    return "; ".join(rows)
