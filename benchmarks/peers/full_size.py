"""One side of `bench_full_size.py`, in a process of its own: makes a checkpoint, or loads it, scores and generates.

python full_size.py make  FOLDER                 transformers 4.35 writes a random checkpoint of wt103's shape
python full_size.py run   FOLDER ANSWERS.pt      loads it with the libraries at hand; prints a line of JSON
"""

import json
import sys
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
    # the defaults are the shape of transfo-xl-wt103; wider weights than those of a fresh model, or all words are alike
    model = TransfoXLLMHeadModel(TransfoXLConfig(init_std=0.05, proj_init_std=0.05))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder, safe_serialization=False, max_shard_size="8GB")


@torch.inference_mode()
def run(folder: str, answers: str) -> None:
    ids = torch.randint(0, 267735, (1, 3 * SEGMENT), generator=torch.Generator().manual_seed(1))
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        from transformers import TransfoXLLMHeadModel as model_class
    else:
        from transformers import AutoModelForCausalLM as model_class

        import transformers_xl  # noqa: F401  registers the models
    before, memory = anonymous(), PeakMemory()
    memory.start()
    began = time.perf_counter()
    model = model_class.from_pretrained(folder).eval()
    loaded = time.perf_counter()
    old = model.config.model_type == "transfo-xl"

    def read(segment: torch.Tensor, mems):
        outputs = model(segment, mems=mems)
        return (outputs.prediction_scores if old else outputs.logits), outputs.mems

    _, mems = read(ids[:, :SEGMENT], None)  # its memory is 1600 zeros
    starts = time.perf_counter()
    log_probs, mems = read(ids[:, SEGMENT : 2 * SEGMENT], mems)
    scored = time.perf_counter()
    memories = {"past_key_values": mems} if old else {"mems": mems}
    generated = model.generate(
        ids[:, 2 * SEGMENT : 2 * SEGMENT + 1], max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
        eos_token_id=None, **memories,
    )  # fmt: skip
    ended = time.perf_counter()
    memory.going = False
    memory.join()
    torch.save({"log_probs": log_probs, "generated": generated}, answers)
    result = {
        "load_seconds": loaded - began, "score_tokens_per_second": SEGMENT / (scored - starts),
        "generate_tokens_per_second": NEW_TOKENS / (ended - scored), "peak_anonymous_bytes": memory.peak - before,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](*sys.argv[2:])
