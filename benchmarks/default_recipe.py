"""Rate and dropout of the default recipe: what `transformers-xl train` gives with each, on held-out documents.

    python examples/library_corpus.py library
    python benchmarks/novels_corpus.py r-cran-janeaustenr_*.deb novels
    OMP_NUM_THREADS=1 python benchmarks/default_recipe.py library novels -o default_recipe.json
    OMP_NUM_THREADS=1 python benchmarks/default_recipe.py library novels -o default_recipe.json --rates 2e-3 --dropouts 0.0
    python benchmarks/novels_corpus.py r-cran-janeaustenr_*.deb few_novels --beginnings 85000    # read eight times
    OMP_NUM_THREADS=1 python benchmarks/default_recipe.py few_novels -o default_recipe.json --rates 2e-3 --dropouts 0.0 0.1
    python benchmarks/default_recipe.py few_novels -o default_recipe.json --rates 2e-3 --steps 500 --seeds 0 1 2

Some twenty minutes of one core for each cell. What is in the file is not run again.
"""

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path

from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json
from transformers_xl.files.processor import processor
from transformers_xl.runs.run_options import read_config
from transformers_xl.runs.training_run import TrainingRun


def bits(corpus: Path, options: list[str]) -> float:
    """Bits per byte of the documents for validation, read with memory, after the default recipe with these options."""
    texts = [f"--data.path={corpus / 'train.jsonl'}", f"--data.eval_path={corpus / 'valid.jsonl'}"]
    config = read_config([*texts, *options])
    with tempfile.TemporaryDirectory() as folder:
        scores = TrainingRun(config, Path(folder) / "model", command="default_recipe.py", print_log=False).train()
    return scores["with memory"].bits_per_byte


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", type=Path, help="folders with train.jsonl and valid.jsonl")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--dropouts", nargs="+", type=float, default=[0.1])
    parser.add_argument("--steps", nargs="+", type=int, default=[1000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    found = read_json(args.output)["runs"] if args.output.is_file() else []
    for seed, corpus, steps, dropout, rate in product(args.seeds, args.corpora, args.steps, args.dropouts, args.rates):
        cell = {"corpus": corpus.name, "steps": steps, "rate": rate, "dropout": dropout, "seed": seed}
        if any(cell.items() <= each.items() for each in found):
            continue
        options = {"training.learning_rate": rate, "training.max_steps": steps, "training.seed": seed}
        options["model.dropout"] = dropout
        cell["bits_per_byte"] = bits(corpus, [f"--{name}={value}" for name, value in options.items()])
        found.append(cell | {"processor": processor()})
        write_text(args.output, json.dumps({"runs": found}, indent=1) + "\n")
        print(cell, flush=True)


if __name__ == "__main__":
    main()
