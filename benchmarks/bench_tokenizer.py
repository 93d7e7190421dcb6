"""The words of `WordTokenizer` against those of sacremoses: are they the same, and how many are split in a second?

Reads text files (by default the text that every CPython ships), line by line, three times: as they are, as people would
write them (joined by Moses, for texts that are split already, as WikiText is), and as they are at spaces only. Every line
of the first two is split by both, with one thread; ids in a vocabulary of the text's words are compared. Writes
`results/tokenizer.json`. Needs sacremoses (`pip install '.[moses]'`).

    python benchmarks/bench_tokenizer.py wikitext-2/valid.txt wikitext-2/test.txt --name "WikiText-2, valid and test"
"""

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

os.environ["RAYON_NUM_THREADS"] = "1"  # of the tokenizers library; sacremoses has no threads
import sacremoses
import tokenizers

from transformers_xl.tokenization.tokenization_words import WordTokenizer

RESULTS = Path(__file__).parent / "results"
SPECIAL = ["<eos>", "<unk>", "<formula>"]
NORMALIZER, TOKENIZER = sacremoses.MosesPunctNormalizer("en"), sacremoses.MosesTokenizer("en")
JOINER = sacremoses.MosesDetokenizer("en")
SPLITTER = re.compile("|".join(f"({re.escape(token)})" for token in SPECIAL))


def reference_words(line: str) -> list[str]:
    """The words of a line as TransfoXLTokenizer of transformers 4.35 found them: special tokens, and between them Moses."""
    found: list[str] = []
    for part in filter(None, SPLITTER.split(line)):
        if part in SPECIAL:
            found.append(part)
            continue
        text = NORMALIZER.normalize(part.strip())
        words = TOKENIZER.tokenize(text, aggressive_dash_splits=True, escape=False, protected_patterns=SPECIAL)
        for word in words:
            found += re.sub(r"(?<=\d)[,.](?=\d)", r" @\g<0>@ ", word).split()
    return found


def seconds(work: Callable, rounds: int) -> float:
    """The median processor time of `work`."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times)


def measure(lines: list[str], rounds: int) -> dict:
    """Both on the same lines; the lookup of ids is part of both."""
    tokenizer = WordTokenizer.train_from_iterator(lines, add_eos=False, special_tokens=SPECIAL, progress=False)
    vocabulary, backend = tokenizer.get_vocab(), tokenizer.backend_tokenizer

    def reference() -> list[list[int]]:
        return [[vocabulary.get(word, 1) for word in reference_words(line)] for line in lines]

    def ours() -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(lines)]

    expected, found = reference(), ours()
    differing = [line for line, ids, others in zip(lines, expected, found, strict=True) if ids != others]
    tokens = sum(map(len, expected))
    return {
        "lines": len(lines),
        "tokens": tokens,
        "lines_that_differ": len(differing),
        "examples_that_differ": differing[:5],
        "sacremoses_tokens_per_second": tokens / seconds(reference, rounds),
        "tokens_per_second": tokens / seconds(ours, rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", type=Path, help="text files; by default the help topics of pydoc")
    parser.add_argument("--name", default="help topics of pydoc", help="what the results call the text")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many runs is taken")
    args = parser.parse_args()

    text = "\n".join(path.read_text(encoding="utf-8") for path in args.texts) or "\n".join(topics.values())
    lines = [line for line in text.split("\n") if line.strip()]
    joined = [re.sub(" @([,.])@ ", r"\1", JOINER.detokenize(line.split())) for line in lines]
    runs = {"as it is": measure(lines, args.rounds), "joined": measure(joined, args.rounds)}
    at_spaces = WordTokenizer.train_from_iterator(lines, split="spaces", add_eos=False, progress=False)
    took = seconds(lambda: at_spaces.backend_tokenizer.encode_batch_fast(lines), args.rounds)
    tokens = sum(len(line.split()) for line in lines)
    runs["at spaces"] = {"lines": len(lines), "tokens": tokens, "tokens_per_second": tokens / took}

    path = RESULTS / "tokenizer.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    results[args.name] = {
        "versions": {"tokenizers": tokenizers.__version__, "sacremoses": "0.2.0", "python": platform.python_version()},
        "machine": f"{platform.machine()}, one thread, processor time",
        "runs": runs,
    }
    path.write_text(json.dumps(results, indent=1, ensure_ascii=True) + "\n")
    for name, run in runs.items():
        speed = f"{run['tokens_per_second']:,.0f} tokens/s"
        if "lines_that_differ" in run:
            speed += f" against {run['sacremoses_tokens_per_second']:,.0f}; {run['lines_that_differ']} lines differ"
        print(f"{args.name}, {name}: {run['tokens']:,} tokens, {speed}")


if __name__ == "__main__":
    main()
