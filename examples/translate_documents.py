"""Translate pages of a manual, sentence by sentence, and measure what memory across sentences is worth.

    python examples/translate_documents.py                      # both memories: what was written, and the sources read
    python examples/translate_documents.py --carry none         # each sentence alone, all else the same
    python examples/translate_documents.py --carry target

The text is the help of LibreOffice in English and German, from two Debian packages (`apt-get download`, 5 MB, no root):
pages whose paragraphs stand in order and are numbered alike. Rows of a batch read pages side by side, a paragraph at a
time; a page begins from an empty memory. A tenth of the pages is held out, and scored in nats per token of the translation.
"""

import argparse
import hashlib
import html
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import set_seed

from transformers_xl import (
    MemoryEncoderDecoderConfig,
    MemoryForConditionalGeneration,
    TransformerXLConfig,
    TransformerXLEncoderConfig,
)

PACKAGES = {"en-US": "libreoffice-help-en-us", "de": "libreoffice-help-de"}
PARAGRAPH = re.compile(r'<(h\d|p)[^>]* id="((?:par|hd)_id\w+)"[^>]*>(.*?)</\1>', re.S)
PAD, START, END = 0, 1, 2
LONGEST = 60  # tokens of a paragraph; longer ones are left out
Page = list[tuple[list[int], list[int]]]


def download(folder: Path) -> None:
    """Both packages, unpacked into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES.values():
        if not (folder / name).is_dir():
            subprocess.run(["apt-get", "download", name], cwd=folder, check=True, capture_output=True)
            (file,) = folder.glob(f"{name}_*.deb")
            with tempfile.TemporaryDirectory(dir=folder) as unpacked:  # it gets its name when all of it is there
                subprocess.run(["dpkg-deb", "-x", str(file), f"{unpacked}/{name}"], check=True)
                Path(unpacked, name).rename(folder / name)


def paragraphs(page: Path) -> dict[str, str]:
    """The texts of a page by their ids, in their order."""
    found = PARAGRAPH.findall(page.read_text(encoding="utf-8"))
    texts = {name: re.sub(r"<[^<>]*>", " ", text) for _, name, text in found}
    return {name: re.sub(r"\s+", " ", html.unescape(text)).strip() for name, text in texts.items()}


def read_pages(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Pairs of paragraphs of each page that both languages have: what is the same in both is no translation."""
    roots = {
        language: folder / name / "usr/share/libreoffice/help" / language / "text"
        for language, name in PACKAGES.items()
    }
    pages = {}
    for file in sorted(roots["en-US"].rglob("*.html")):
        name = str(file.relative_to(roots["en-US"]))
        if (other := roots["de"] / name).exists():
            source, target = paragraphs(file), paragraphs(other)
            pairs = [(text, target[key]) for key, text in source.items() if target.get(key, text) != text and text]
            pages[name] = [pair for pair in pairs if all(pair)]
    return {name: pairs for name, pairs in pages.items() if len(pairs) > 1}


def is_held_out(name: str) -> bool:
    """A tenth of the pages, by their names."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10 == 0


def learn_words(texts: Iterator[str], words: int) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=words, special_tokens=special, show_progress=False))
    return made


def encoded(pages: dict[str, list[tuple[str, str]]], tokenizer: Tokenizer) -> list[Page]:
    found = []
    for pairs in pages.values():
        page = [tuple([*tokenizer.encode(text).ids, END] for text in pair) for pair in pairs]
        found.append([(source, target) for source, target in page if max(len(source), len(target)) <= LONGEST])
    return [page for page in found if page]


def build(words: int, width: int) -> MemoryForConditionalGeneration:
    fields = {
        "vocab_size": words, "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 4 * width, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END,
    }  # fmt: skip
    encoder, decoder = TransformerXLEncoderConfig(**fields), TransformerXLConfig(**fields, mem_len=128)
    return MemoryForConditionalGeneration(
        MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder, source_mem_len=128)
    )


class Step(NamedTuple):
    """One paragraph of each row: `(rows, length)` ids, and which rows begin a page, `(rows,)`; `pages`, their numbers."""

    source: torch.Tensor
    labels: torch.Tensor
    reset: torch.Tensor
    pages: list[int]


def padded(rows: list[list[int]], pad: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


def in_rows(pages: list[Page], rows: int, order: list[int], again: bool) -> Iterator[Step]:
    """Pages side by side, each row the next one in `order` when its page ends; `again`: without end."""
    waiting, open_pages = list(order), [(-1, 0)] * rows
    while True:
        here = []
        for row, (page, place) in enumerate(open_pages):
            if page < 0 or place == len(pages[page]):
                if not waiting and again:
                    waiting = list(order)
                page, place = (waiting.pop(0), 0) if waiting else (-1, 0)
            open_pages[row] = (page, place + 1)
            here.append((page, place))
        if all(page < 0 for page, _ in here):
            return
        # a row without a page reads nothing: one token of the source, and no label
        pairs = [pages[page][place] if page >= 0 else ([END], [-100]) for page, place in here]
        reset = torch.tensor([place == 0 for _, place in here])
        yield Step(
            padded([source for source, _ in pairs], PAD), padded([target for _, target in pairs], -100), reset,
            [page for page, _ in here],
        )  # fmt: skip


class Carried:
    """What stays from one paragraph to the next: the decoder's memory, and that of the sources."""

    def __init__(self, carry: str):
        self.carry, self.memories = carry, {}

    def given(self, step: Step) -> dict:
        return self.memories | ({"reset": step.reset} if self.memories else {})

    def keep(self, output) -> None:
        names = {"none": (), "target": ("mems",), "both": ("mems", "source_mems")}[self.carry]
        self.memories = {name: output[name] for name in names}


def train(model: MemoryForConditionalGeneration, pages: list[Page], args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0)
    warm = max(1, args.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.02, (args.steps - step) / max(1, args.steps - warm)))
    )
    order, carried = torch.randperm(len(pages)).tolist(), Carried(args.carry)
    model.train()
    for number, step in zip(range(args.steps), in_rows(pages, args.rows, order, again=True), strict=False):
        output = model(step.source, labels=step.labels, **carried.given(step))
        carried.keep(output)
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if number % 50 == 0:
            print(f"step {number}: {output.loss.item():.3f} nats a token", flush=True)


@torch.no_grad()
def score(
    model: MemoryForConditionalGeneration, pages: list[Page], carry: str, rows: int = 32
) -> list[tuple[float, int]]:
    """Nats of the translation of each page, and its tokens, read as in training."""
    model.eval()
    nats, counts, carried = [0.0] * len(pages), [0] * len(pages), Carried(carry)
    for step in in_rows(pages, rows, list(range(len(pages))), again=False):
        output = model(step.source, labels=step.labels, **carried.given(step))
        carried.keep(output)
        losses = torch.nn.functional.cross_entropy(output.logits.mT, step.labels, reduction="none").sum(1)
        for page, loss, count in zip(step.pages, losses.tolist(), (step.labels != -100).sum(1).tolist(), strict=True):
            if page >= 0:
                nats[page], counts[page] = nats[page] + loss, counts[page] + count
    return list(zip(nats, counts, strict=True))


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/libreoffice-help"))
    parser.add_argument("--carry", choices=("none", "target", "both"), default="both")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--pages", type=int, help="held-out pages to score; all when not given")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    least = min(args.steps, args.rows, args.words, args.width, 1 if args.pages is None else args.pages)
    if least < 1:
        parser.error("--steps, --rows, --words, --width and --pages must be at least 1")
    return args


@cache
def load(folder: Path, words: int) -> tuple[list[Page], list[Page]]:
    """The pages to train on, and those that are held out."""
    download(folder)
    pages = read_pages(folder)
    parts = [{name: page for name, page in pages.items() if is_held_out(name) == part} for part in (False, True)]
    file = folder / f"words-{words}.json"
    if not file.exists():
        learn_words((text for page in parts[0].values() for pair in page for text in pair), words).save(str(file))
    known, unseen = (encoded(part, Tokenizer.from_file(str(file))) for part in parts)
    return known, unseen


def run(args: argparse.Namespace) -> dict:
    """Train and score one model; `pages` of the result: nats and tokens of each."""
    known, unseen = load(args.folder, args.words)
    set_seed(args.seed)
    model, start = build(args.words, args.width), time.process_time()
    train(model, known, args)
    seconds = time.process_time() - start
    scores = score(model, unseen[: args.pages], args.carry)
    nats, tokens = (sum(each) for each in zip(*scores, strict=True))
    result = {"carry": args.carry, "seed": args.seed, "nats_per_token": round(nats / tokens, 4), "tokens": tokens}
    result |= {"seconds": round(seconds, 1), "parameters": model.num_parameters()}
    return result | {"pages": [[round(loss, 2), count] for loss, count in scores]}


if __name__ == "__main__":
    found = run(arguments())
    print(json.dumps({name: value for name, value in found.items() if name != "pages"}))
