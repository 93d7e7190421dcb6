"""What memory across the sentences of a document is worth to a translation: `examples/translate_documents.py`, with each
paragraph alone, with the memory of the target, and with both memories, three seeds each, and the intervals of the
differences for other seeds and pages.

    python benchmarks/bench_document_translation.py
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from transformers_xl.files.processor import processor
from transformers_xl.runs.comparison_statistics import difference

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "examples"))
from translate_documents import arguments, run  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "document_translation.json"
WORDS = ["--steps", "1000", "--words", "2000", "--pages", "120", "--rows", "24"]
WAYS, SEEDS = ("none", "target", "both"), range(3)


def main() -> None:
    torch.set_num_threads(1)
    records: list[dict] = []
    for seed in SEEDS:
        for carry in WAYS:
            records.append(run(arguments([*WORDS, "--carry", carry, "--seed", str(seed)])))
            print({name: value for name, value in records[-1].items() if name != "pages"}, flush=True)
        write(records)


def write(records: list[dict]) -> None:
    """The records so far, and what memories add, in nats a token: below zero they help."""
    tokens = np.array([count for _, count in records[0]["pages"]])
    nats = {
        way: np.array([[loss for loss, _ in row["pages"]] for row in records if row["carry"] == way]) for way in WAYS
    }
    found = {way: difference(nats[way], nats["none"], tokens) for way in WAYS[1:]}
    ends = {way: [round(end, 4) for end in (each.mean, each.low, each.high)] for way, each in found.items()}
    means = {
        way: round(float(np.mean([row["nats_per_token"] for row in records if row["carry"] == way])), 4)
        for way in WAYS
    }
    rows = [{name: value for name, value in row.items() if name != "pages"} for row in records]
    result = {
        "words": WORDS, "threads": 1, "processor": str(processor()), "seeds": len(rows) // len(WAYS), "pages": len(tokens),
        "nats_per_token": means,
        "differences": ends, "records": rows,
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
