"""All claims in one process, one seed of all after the other, so that every claim has one early.

python benchmarks/claims/run_all.py               # resumes where it was cut off
python benchmarks/claims/run_all.py macaron pondering
"""

import argparse
import importlib
from pathlib import Path

import torch
from claim_runs import FOLDER, RESULTS, Session

# by what they decide for a minute of the processor
ORDER = (
    "relative_positions",
    "longer_memory",
    "shaw_positions",
    "star_linear",
    "macaron",
    "gates_steady",
    "effective_context",
    "pondering",
    "early_exit",
    "local_rnn",
    "product_keys",
    "spans_by_layer",
    "gates_remember",
    "pre_norm",
    "complex_order",
    "recurrence",
    "recurrence_on_sources",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", help="names; all by default")
    parser.add_argument("--text", type=Path, help="a text file; by default those that every machine has")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(5):
        for name in args.claims or ORDER:
            claim = importlib.import_module(name).CLAIM
            if seed < claim.seeds:
                session = Session(args.text or claim.text(), FOLDER / "models")
                claim.run(session, RESULTS, range(seed, seed + 1))
                claim.report(RESULTS)


if __name__ == "__main__":
    main()
