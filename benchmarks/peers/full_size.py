"""One side of `bench_full_size.py`, in a process of its own: makes a checkpoint, or loads it, scores and generates.

python full_size.py make  FOLDER                 transformers 4.35 writes a random checkpoint of wt103's shape
python full_size.py run   FOLDER ANSWERS.pt      loads it with the libraries at hand; prints a line of JSON
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

SEGMENT, NEW_TOKENS = 128, 20


class PeakMemory(threading.Thread):
    """The largest anonymous memory of the process, looked at every 5 ms: pages of a mapped file are not counted."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.going = 0, True

    def run(self) -> None:
        while self.going:
            self.peak = max(self.peak, anonymous())
            time.sleep(0.005)


def anonymous() -> int:
    """Bytes that belong to the process and to no file."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def make(folder: str) -> None:
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    torch.manual_seed(0)
    # the defaults are the shape of transfo-xl-wt103; wider weights than those of a fresh model, whose words are all alike
    model = TransfoXLLMHeadModel(TransfoXLConfig())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.03)
    model.save_pretrained(folder, safe_serialization=False, max_shard_size="8GB")


def libraries() -> tuple[type, str]:
    """The class that loads the checkpoint, and the version of transformers."""
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        from transformers import TransfoXLLMHeadModel as model_class
    else:
        from transformers import AutoModelForCausalLM as model_class

        import transformers_xl  # noqa: F401  registers the models
    return model_class, transformers.__version__


def load_libraries() -> None:
    """Load and run a tiny model, so that what the libraries import on the way is not counted as memory of the large one."""
    import transformers

    sizes = {"vocab_size": 40, "cutoffs": [10, 20], "d_model": 8, "d_embed": 8, "n_head": 2, "d_head": 4, "n_layer": 1}
    old = hasattr(transformers, "TransfoXLConfig")
    if old:
        tiny = transformers.TransfoXLLMHeadModel(
            transformers.TransfoXLConfig(**sizes, d_inner=8, mem_len=4, div_val=1)
        )
    else:
        import transformers_xl

        tiny = transformers_xl.TransformerXLForCausalLM(transformers_xl.TransformerXLConfig(**sizes, mem_len=4))
    with tempfile.TemporaryDirectory() as folder:
        tiny.save_pretrained(folder)
        tiny = type(tiny).from_pretrained(folder).eval()
    tiny.generate(torch.ones(1, 2, dtype=torch.long), max_new_tokens=2, pad_token_id=0, eos_token_id=None)


def text() -> torch.Tensor:
    return torch.randint(0, 267735, (1, 3 * SEGMENT), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def predict(folder: str, answers: str) -> None:
    """Log-probabilities of all words for a segment of 128 with a memory of 1600."""
    model = libraries()[0].from_pretrained(folder).eval()
    first, second = text()[:, :SEGMENT], text()[:, SEGMENT : 2 * SEGMENT]
    outputs = model(second, mems=model(first).mems)
    torch.save(outputs.prediction_scores if "prediction_scores" in outputs else outputs.logits, answers)


@torch.inference_mode()
def run(folder: str, answers: str) -> None:
    ids, (model_class, version) = text(), libraries()
    load_libraries()
    before, memory = anonymous(), PeakMemory()
    memory.start()
    began = time.perf_counter()
    model = model_class.from_pretrained(folder).eval()
    loaded = time.perf_counter()
    old, memories = model.config.model_type == "transfo-xl", {}
    for start in (0, SEGMENT):  # the memory of the first segment is 1600 zeros
        segment, starts = ids[:, start : start + SEGMENT], time.perf_counter()
        if old:
            outputs = model(segment, labels=segment, **memories)
            memories = {"mems": outputs.mems}
        else:
            outputs = model(segment, labels=segment, use_cache=True, logits_to_keep=1, **memories)
            memories = {"past_key_values": outputs.past_key_values}
        nats, scored = outputs.loss.item(), time.perf_counter()
        del outputs
    if old:
        memories = {"past_key_values": memories["mems"]}
    else:  # as in transformers, a mask that covers what the cache has read says that only the rest is new
        memories["attention_mask"] = torch.ones(1, 2 * SEGMENT + 1, dtype=torch.long)
    going_on = time.perf_counter()
    generated = model.generate(
        ids[:, 2 * SEGMENT : 2 * SEGMENT + 1], max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
        eos_token_id=None, **memories,
    )  # fmt: skip
    ended = time.perf_counter()
    memory.going = False
    memory.join()
    torch.save(generated, answers)
    result = {
        "load_seconds": loaded - began, "score_tokens_per_second": SEGMENT / (scored - starts),
        "generate_tokens_per_second": NEW_TOKENS / (ended - going_on), "peak_anonymous_bytes": memory.peak - before,
        "nats": nats, "versions": {"torch": torch.__version__, "transformers": version},
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    {"make": make, "predict": predict, "run": run}[sys.argv[1]](*sys.argv[2:])
