"""A tokenizer of a corpus's text for training, written beside it: words and parts of words.

    python benchmarks/corpus_tokenizer.py library --vocabulary 8192    # reads library/train.jsonl, writes library/tokenizer

A byte-level BPE: no text is lost in it.
"""

import argparse
import json
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast


def tokenizer_of(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """Words and parts of words, `size` of them with the end of a text."""
    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator(texts, vocab_size=size, special_tokens=["<eos>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token="<eos>", pad_token="<eos>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a folder with train.jsonl")
    parser.add_argument("--vocabulary", type=int, default=8192, help="so many tokens")
    parser.add_argument("--name", default="tokenizer", help="the folder in that of the corpus that is written")
    args = parser.parse_args()
    with (args.corpus / "train.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    tokenizer_of(texts, args.vocabulary).save_pretrained(args.corpus / args.name)


if __name__ == "__main__":
    main()
