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
    "temporal_confusion",
    "relative_positions",
    "longer_memory",
    "shaw_positions",
    "recurrence",
    "recurrence_on_sources",
    "star_linear",
    "local_rnn",
    "gates_steady",
    "early_exit",
    "pondering",
    "macaron",
    "effective_context",
    "product_keys",
    "complex_order",
    "spans_by_layer",
    "pre_norm",
    "canonical_agents",
    "steady_agents",
    "clipping_distance",
    "macaron_translation",
    "norms_translation",
    "complex_order_translation",
    "complex_order_classification",
    "exits_translation",
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
                try:
                    session = Session(args.text or claim.text(), FOLDER / "models")
                except FileNotFoundError as error:  # a text that is no part of this project
                    print(f"{name}: {error}", flush=True)
                    continue
                claim.run(session, RESULTS, range(seed, seed + 1))
                claim.report(RESULTS)


if __name__ == "__main__":
    main()
