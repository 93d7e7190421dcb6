"""How well and how fast an index finds the nearest keys, against exact search: `transformers_xl.modeling.layers.key_index`.

Keys and queries of one head, of width 64: those of a small Memorizing Transformer that reads a text, after some
training, and random ones of length one. A random key is hardly nearer to a query than any other, the worst case of an
index; a text repeats itself. Writes `results/retrieval.json`.

    python benchmarks/bench_retrieval.py --text input.txt

Times are CPU time of one thread, for one query of one head: the least of 5 rounds of all queries.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import torch

from transformers_xl import ByteTokenizer, MemorizingTransformerConfig, MemorizingTransformerForCausalLM
from transformers_xl.files.processor import processor
from transformers_xl.modeling.layers.key_index import RowIndex
from transformers_xl.modeling.layers.retrieval_attention import KeySearch, LookupPart

RESULTS = Path(__file__).parent / "results"
SIZES, PROBES = (10**4, 10**5, 10**6), (1, 4, 16, 64)
WIDTH, BLOCK, COUNT, QUERIES, ROUNDS = 64, 512, 32, 64, 5


class Recorder(KeySearch):
    """Finds nothing, and keeps what it was asked."""

    def __init__(self):
        self.query: torch.Tensor | None = None

    def find(self, query, keys, first, last, part, count):
        self.query = query
        columns = query.new_zeros((*query.shape[:3], count), dtype=torch.long)
        return columns, torch.zeros_like(columns, dtype=torch.bool)


def trained_model(ids: torch.Tensor, steps: int) -> MemorizingTransformerForCausalLM:
    """A small model after some steps of training on the beginning of the text."""
    torch.manual_seed(0)
    config = MemorizingTransformerConfig(
        vocab_size=len(ByteTokenizer()), hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
        mem_len=128, block_length=128, num_memory_keys=1024, num_retrieved=8, dropout=0.0,
    )  # fmt: skip
    model = MemorizingTransformerForCausalLM(config).train()
    optimizer, memory = torch.optim.AdamW(model.parameters(), lr=2e-3), {}
    for step, segment in enumerate(ids[: 8 * 128 * steps].view(8, -1).split(128, dim=1)):
        output = model(segment, labels=segment, **memory)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        memory = {"mems": output.mems}
        if step % 20 == 0:
            print(f"step {step}: {output.loss.item() / 0.6931:.3f} bits per byte", flush=True)
    return model.eval()


@torch.no_grad()
def keys_of_text(model: MemorizingTransformerForCausalLM, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys `(10^6, 64)` of a head, and queries `(512, 64)` of the bytes after them."""
    model.config.num_memory_keys, model.config.block_length = SIZES[-1] + BLOCK, BLOCK
    layer = model.model.layers[model.config.memory_layers[0]]
    layer.key_search, cache = Recorder, None
    start = -(-SIZES[-1] // BLOCK) * BLOCK
    for segment in ids[None, : start + BLOCK].split(BLOCK, dim=1):
        cache = model.model(segment, past_key_values=cache, use_cache=True).past_key_values
    index = layer.self_attn.layer_idx
    keys, search = cache.memory.layers[index].older[0], cache.layer_cache(index).derived
    return keys[0, 0, -SIZES[-1] - BLOCK : -BLOCK].clone(), search.query[0, 0].clone()


def random_keys() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    keys, queries = (torch.randn(number, WIDTH, generator=generator) for number in (SIZES[-1], BLOCK))
    return tuple(each / each.norm(dim=-1, keepdim=True) for each in (keys, queries))


def milliseconds(run: Callable[[torch.Tensor], object], queries: torch.Tensor) -> float:
    """Of one query of one head, token by token."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for query in queries:
            run(query[None, None, None])
        times.append((time.process_time() - start) / len(queries))
    return 1000 * min(times)


@torch.no_grad()
def measure(keys: torch.Tensor, queries: torch.Tensor, number: int) -> dict:
    """Milliseconds and recall among the newest `number` of the keys."""
    held = keys[-number:][None, None].contiguous()
    chosen = queries[:: len(queries) // QUERIES][:QUERIES]
    none, part = torch.empty(0), LookupPart(0, len(chosen), 0, number, is_one=True)

    def exact(query: torch.Tensor) -> torch.Tensor:
        return KeySearch().find(query, held, none, none, part, COUNT)[0]

    row = {"keys": number, "exact": milliseconds(exact, chosen)}
    nearest = exact(chosen[None, None])[0, 0]

    kept = number - BLOCK  # as before the last block
    start = time.process_time()
    index = RowIndex(held[0], 0, kept, 1)
    row["made in seconds"], start = time.process_time() - start, time.process_time()
    index.move(held[0], 0, number)
    row["a block added, per token"] = 1000 * (time.process_time() - start) / BLOCK
    row["lists"], row["index"] = index.heads[0].nlist, []
    for probes in PROBES:
        index.heads[0].nprobe = min(probes, row["lists"])
        found = index.find(chosen[None], COUNT)[0]
        hits = (found[..., None] == nearest[:, None]).any(-1).float().mean().item()
        row["index"].append(
            {
                "probes": probes,
                "recall": hits,
                "milliseconds": milliseconds(lambda query: index.find(query[0], COUNT), chosen),
            }
        )
    start = time.process_time()
    index.move(held[0], BLOCK, number)
    row["a block removed, per token"] = 1000 * (time.process_time() - start) / BLOCK
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="more than a million bytes: Tiny Shakespeare")
    parser.add_argument("--steps", type=int, default=100, help="of training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    ids = torch.tensor(ByteTokenizer()(arguments.text.read_text(encoding="utf-8"))["input_ids"])
    sources = {
        "text": keys_of_text(trained_model(ids, arguments.steps), ids),
        "random": random_keys(),
    }
    result = {
        "processor": str(processor()),
        "torch": torch.__version__,
        "faiss": faiss.__version__,
        "python": platform.python_version(),
        "width": WIDTH,
        "retrieved": COUNT,
        "steps": arguments.steps,
        "rows": {name: [measure(*source, number) for number in SIZES] for name, source in sources.items()},
    }
    (RESULTS / "retrieval.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
