"""What a generated token of a Compressive Transformer costs: Rae et al., 2019, https://arxiv.org/abs/1911.05507.

A window of 512 and 512 compressed vectors beside a Transformer-XL of the same width with a window of 1024: equally many
keys. Both memories are full. One thread, in processor time, in turns of `--tokens`, so that what else the machine does
counts little; the ratio is the median over turns. Writes `results/compressive.json`.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers

from transformers_xl import (
    CompressiveTransformerConfig,
    CompressiveTransformerForCausalLM,
    TransformerXLConfig,
    TransformerXLForCausalLM,
)
from transformers_xl.hub.measurements import device_name

RESULTS = Path(__file__).parent / "results"
WINDOW, COMPRESSED, RATE = 512, 512, 3
SIZES = {"4 x 256": (4, 256), "12 x 512": (12, 512)}


def models(layers: int, width: int) -> dict[str, torch.nn.Module]:
    fields = {
        "vocab_size": 256, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
    }  # fmt: skip
    torch.manual_seed(0)
    compressed = {"mem_len": WINDOW, "compressed_mem_len": COMPRESSED, "compression_rate": RATE}
    return {
        "transformer_xl": TransformerXLForCausalLM(TransformerXLConfig(mem_len=WINDOW + COMPRESSED, **fields)).eval(),
        "compressive_transformer": CompressiveTransformerForCausalLM(
            CompressiveTransformerConfig(**compressed, **fields)
        ).eval(),
    }


@torch.inference_mode()
def full_memory(model: torch.nn.Module, length: int):
    """The memory after `length` tokens, read in pieces."""
    mems = None
    for ids in torch.randint(0, 256, (1, length)).split(256, dim=1):
        mems = model(ids, mems=mems, use_cache=True, logits_to_keep=1).mems
    return mems


def milliseconds(model: torch.nn.Module, memory, tokens: int):
    """Processor time of a generated token, and the memory after them."""
    start = time.process_time()
    result = model.generate(
        torch.zeros(1, 1, dtype=torch.long), mems=memory, max_new_tokens=tokens, do_sample=False,
        return_dict_in_generate=True,
    )  # fmt: skip
    return 1000 * (time.process_time() - start) / tokens, result.mems


def measure(layers: int, width: int, tokens: int, turns: int) -> dict:
    both = models(layers, width)
    memories = {name: full_memory(model, WINDOW + RATE * COMPRESSED + 256) for name, model in both.items()}
    times: dict[str, list[float]] = {name: [] for name in both}
    for turn in range(turns + 1):
        for name, model in both.items():
            spent, memories[name] = milliseconds(model, memories[name], tokens)
            times[name] += [spent] if turn else []  # the first one warms up
    ratios = [ours / base for base, ours in zip(*times.values(), strict=True)]
    return {
        "milliseconds_per_token": {name: round(statistics.median(spent), 3) for name, spent in times.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100, help="per turn")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="layers x width")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "arguments": vars(args),
        "window": WINDOW, "compressed": COMPRESSED, "compression_rate": RATE,
        "window_of_transformer_xl": WINDOW + COMPRESSED,
        "sizes": {size: measure(*SIZES[size], args.tokens, args.turns) for size in args.sizes},
        "device": device_name(torch.device("cpu")), "python": platform.python_version(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    print(json.dumps(results["sizes"], indent=1))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compressive.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
