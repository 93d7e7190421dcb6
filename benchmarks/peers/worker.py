"""One competitor in a process of its own, with its own libraries: it sets up a task, and times one unit of it when asked.

Talks in lines of JSON over stdin and stdout. The benchmark starts one for each competitor and lets them take turns, so
that a busy machine slows all of them alike. Imports nothing but torch and the competitor, whatever its version.
"""

import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass

import torch

VOCAB_SIZE = 256


@dataclass
class Task:
    """What is measured: `kind` is train, evaluate, evaluate_value or generate; lengths in tokens."""

    kind: str
    size: str
    memory: int
    batch: int
    segment: int
    new_tokens: int = 64


SIZES = {
    "small": {"layers": 6, "width": 256, "heads": 8, "inner": 1024},
    "big": {"layers": 12, "width": 512, "heads": 8, "inner": 2048},
}


class Peer:
    """A competitor: builds its model, and reads text with whatever it calls its memory."""

    fused: bool | None = True

    def __init__(self, task: Task):
        torch.manual_seed(0)
        self.task = task
        self.size = SIZES[task.size]
        self.model = self.build()
        self.model.train(task.kind == "train")
        # as each library's own Trainer makes it: fused from transformers 5 on
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=self.fused)
        self.memory = None
        self.position = 0
        generator = torch.Generator().manual_seed(1)
        self.text = torch.randint(0, VOCAB_SIZE, (task.batch, 64 * task.segment), generator=generator)

    def next_ids(self, length: int) -> torch.Tensor:
        if self.position + length > self.text.shape[1]:
            self.position = 0
        self.position += length
        return self.text[:, self.position - length : self.position]

    def build(self):
        raise NotImplementedError

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Read a segment, remember it, and return the loss."""
        raise NotImplementedError

    def generate(self, ids: torch.Tensor, new_tokens: int) -> torch.Tensor:
        """New tokens after a full memory and `ids` (batch, 1)."""
        raise NotImplementedError

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of a first segment, for the check that two competitors are one model."""
        raise NotImplementedError

    def fill(self) -> None:
        """Read until the memory is full."""
        read = 0
        with torch.no_grad():
            while read < self.task.memory + self.task.segment:
                self.read(self.next_ids(self.task.segment))
                read += self.task.segment

    def unit(self) -> None:
        if self.task.kind == "train":
            self.read(self.next_ids(self.task.segment)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        elif self.task.kind == "generate":
            with torch.no_grad():
                self.generate(self.next_ids(1), self.task.new_tokens)
        else:
            with torch.no_grad():
                self.read(self.next_ids(self.task.segment))


class Ours(Peer):
    extra: dict = {}

    def build(self):
        from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM

        return TransformerXLForCausalLM(self.config(TransformerXLConfig))

    def config(self, config_class, **fields):
        size = self.size
        return config_class(
            vocab_size=VOCAB_SIZE, hidden_size=size["width"], num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"], intermediate_size=size["inner"], mem_len=self.task.memory,
            segment_length=self.task.segment, norm_position="post", dropout=0.0, **(self.extra | fields),
        )  # fmt: skip

    def read(self, ids):
        if self.task.kind in ("evaluate", "generate"):
            outputs = self.model(ids, past_key_values=self.memory, labels=ids, use_cache=True)
            self.memory = outputs.past_key_values
        else:
            outputs = self.model(ids, mems=self.memory, labels=ids)
            self.memory = outputs.mems
        return outputs.loss

    def generate(self, ids, new_tokens):
        return self.model.generate(ids, mems=self.memory, max_new_tokens=new_tokens, do_sample=False)

    def logits(self, ids):
        return self.model(ids).logits


class OursStatic(Ours):
    """generate() with a static memory and torch.compile."""

    def generate(self, ids, new_tokens):
        return self.model.generate(
            ids, max_new_tokens=new_tokens, do_sample=False, cache_implementation="static", **self.start()
        )

    def start(self):
        return {"mems": self.value}

    def fill(self):
        text = self.text[:, : self.task.memory + self.task.segment]
        self.value = self.model(text).mems


class Floor(Ours):
    """The same model without the position term, its attention by SDPA."""

    def build(self):
        from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
        from transformers_xl.modeling.layers.attention import MemoryAttention
        from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
        from transformers_xl.modeling.modeling_transformer_xl import TransformerXLModel

        class Layer(MemoryLayer):
            attention_class = MemoryAttention

        class Model(TransformerXLModel):
            layer_class = Layer
            positions_class = None

        class Head(TransformerXLForCausalLM):
            model_class = Model

        return Head(self.config(TransformerXLConfig))


class OldTransfoXL(Peer):
    """TransfoXL of transformers 4.35, within 1 % of the original code."""

    fused = None

    def build(self):
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel

        size = self.size
        config = TransfoXLConfig(
            vocab_size=VOCAB_SIZE, cutoffs=[], d_model=size["width"], d_embed=size["width"], n_head=size["heads"],
            d_head=size["width"] // size["heads"], d_inner=size["inner"], n_layer=size["layers"],
            mem_len=self.task.memory, div_val=1, same_length=True, dropout=0.0, dropatt=0.0, adaptive=True,
        )  # fmt: skip
        return TransfoXLLMHeadModel(config)

    def read(self, ids):
        outputs = self.model(ids, mems=self.memory, labels=ids)
        self.memory = outputs.mems
        return outputs.loss

    def generate(self, ids, new_tokens):
        return self.model.generate(
            ids,
            past_key_values=self.memory,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )

    def logits(self, ids):
        return self.model(ids).logits


class GPT2(Peer):
    def build(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        size = self.size
        config = GPT2Config(
            vocab_size=VOCAB_SIZE, n_embd=size["width"], n_layer=size["layers"], n_head=size["heads"],
            n_inner=size["inner"], n_positions=self.task.memory + self.task.new_tokens + 2, embd_pdrop=0.0,
            attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return GPT2LMHeadModel(config)

    def fill(self):
        import copy

        ids = self.text[:, : self.task.memory]
        with torch.no_grad():
            self.start = self.model(ids, use_cache=True).past_key_values
        self.copy = lambda: copy.deepcopy(self.start)

    def generate(self, ids, new_tokens):
        ids = torch.cat([self.text[:, : self.task.memory], ids], dim=1)
        return self.model.generate(
            ids, past_key_values=self.copy(), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
        )


class Mistral(GPT2):
    def build(self):
        from transformers import MistralConfig, MistralForCausalLM

        size = self.size
        config = MistralConfig(
            vocab_size=VOCAB_SIZE, hidden_size=size["width"], num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"], num_key_value_heads=size["heads"], intermediate_size=size["inner"] * 2 // 3,
            sliding_window=self.task.memory, max_position_embeddings=65536, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return MistralForCausalLM(config)


PEERS = {
    "ours": Ours,
    "floor": Floor,
    "old": OldTransfoXL,
    "gpt2": GPT2,
    "mistral": Mistral,
    "ours_static": OursStatic,
}


def measure(peer: Peer) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    peer.unit()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def main() -> None:
    name = sys.argv[1]
    answers = sys.stdout
    sys.stdout = sys.stderr
    peer = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict = {}
        if request["do"] == "setup":
            torch.set_num_threads(request["threads"])
            peer = PEERS[name](Task(**request["task"]))
            peer.fill()
            for _ in range(2):
                peer.unit()
            answer["parameters"] = sum(p.numel() for p in peer.model.parameters())
        elif request["do"] == "measure":
            times = [measure(peer) for _ in range(request["repeats"])]
            answer = {kind: statistics.median(t[kind] for t in times) for kind in ("wall", "cpu")}
        elif request["do"] == "peak":
            answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
