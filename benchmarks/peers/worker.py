"""One competitor in a process of its own, with its own libraries: it sets up a task, and times one unit of it when asked.

Talks in lines of JSON over stdin and stdout. The benchmark starts one for each competitor and lets them take turns, so
that a busy machine slows all of them alike. Imports nothing but torch and the competitor, whatever its version.
"""

import contextlib
import importlib.metadata
import json
import statistics
import sys
import time
import typing
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
        self.accelerate()
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

    def accelerate(self) -> None:
        """Switch on what pays on this processor."""

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Read a segment, remember it, and return the loss."""
        raise NotImplementedError

    def generate(self, ids: torch.Tensor, new_tokens: int) -> torch.Tensor:
        """New tokens after a full memory and `ids` (batch, 1)."""
        raise NotImplementedError

    def prediction(self, ids: torch.Tensor, memory) -> tuple:
        """Log-probabilities of a segment and the memory after it, for the check that two competitors are one model."""
        raise NotImplementedError

    def predictions(self, segments: int = 4) -> torch.Tensor:
        """Log-probabilities `(batch, segments x segment, vocabulary)` of the beginning of the text."""
        memory, parts = None, []
        with torch.no_grad():
            for ids in self.text.split(self.task.segment, dim=1)[:segments]:
                part, memory = self.prediction(ids, memory)
                parts.append(part)
        return torch.cat(parts, dim=1)

    def kept_for_backward(self) -> int:
        """Bytes of what a training step keeps for its backward pass, each storage once, parameters left out."""
        parameters = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        storages: dict[int, tuple[int, torch.Tensor]] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                storages[storage.data_ptr()] = (storage.nbytes(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self.read(self.next_ids(self.task.segment))
        return sum(size for size, _ in storages.values())

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
    """As the commands run it."""

    extra: typing.ClassVar[dict] = {}

    def build(self):
        from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM

        return TransformerXLForCausalLM(self.config(TransformerXLConfig))

    def accelerate(self):
        from transformers_xl.runs.allocator import keep_freed_memory
        from transformers_xl.runs.onednn_linear import accelerate_linear_layers

        keep_freed_memory()
        accelerate_linear_layers(self.model)

    def config(self, config_class, **fields):
        size = self.size
        return config_class(
            vocab_size=VOCAB_SIZE, hidden_size=size["width"], num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"], intermediate_size=size["inner"], mem_len=self.task.memory,
            segment_length=self.task.segment, norm_position="post", share_relative_bias=False, initial_memory="zeros",
            dropout=0.0, **(self.extra | fields),
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
        return self.model.generate(ids, mems=self.memory.memory, max_new_tokens=new_tokens, do_sample=False)

    def load(self, theirs: dict[str, torch.Tensor]) -> None:
        """Take over the weights of the old TransfoXL."""
        ours = {"model.embed_tokens.weight": theirs["transformer.word_emb.emb_layers.0.weight"]}
        ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
        ours["lm_head.bias"] = theirs["crit.out_layers.0.bias"]
        for layer in range(self.size["layers"]):
            old, new = f"transformer.layers.{layer}", f"model.layers.{layer}"
            for part, rows in zip("qkv", theirs[f"{old}.dec_attn.qkv_net.weight"].chunk(3), strict=True):
                ours[f"{new}.self_attn.{part}_proj.weight"] = rows
            for old_name, new_name in (
                ("dec_attn.o_net.weight", "self_attn.o_proj.weight"), ("dec_attn.r_net.weight", "self_attn.r_proj.weight"),
                ("dec_attn.r_w_bias", "self_attn.bias.content_bias"), ("dec_attn.r_r_bias", "self_attn.bias.position_bias"),
                ("dec_attn.layer_norm.weight", "input_layernorm.weight"),
                ("dec_attn.layer_norm.bias", "input_layernorm.bias"),
                ("pos_ff.layer_norm.weight", "post_attention_layernorm.weight"),
                ("pos_ff.layer_norm.bias", "post_attention_layernorm.bias"),
                ("pos_ff.CoreNet.0.weight", "mlp.fc1.weight"), ("pos_ff.CoreNet.0.bias", "mlp.fc1.bias"),
                ("pos_ff.CoreNet.3.weight", "mlp.fc2.weight"), ("pos_ff.CoreNet.3.bias", "mlp.fc2.bias"),
            ):  # fmt: skip
                ours[f"{new}.{new_name}"] = theirs[f"{old}.{old_name}"]
        self.model.load_state_dict(ours)

    def prediction(self, ids, memory):
        outputs = self.model(ids, **(memory or {}), use_cache=self.task.kind in ("evaluate", "generate"))
        carried = "mems" if outputs.past_key_values is None else "past_key_values"
        return outputs.logits.log_softmax(-1), {carried: outputs[carried]}


class OursRecompute(Ours):
    """With the weights of the attention computed again in the backward pass."""

    extra: typing.ClassVar[dict] = {"recompute_attention": True}


class OursStatic(Ours):
    """generate() with a static memory and torch.compile."""

    def generate(self, ids, new_tokens):
        return self.model.generate(
            ids, mems=self.memory, max_new_tokens=new_tokens, do_sample=False, cache_implementation="static"
        )

    def read(self, ids):
        outputs = self.model(ids, mems=self.memory, labels=ids)
        self.memory = outputs.mems
        return outputs.loss


class OursCompiled(Ours):
    """generate() with a step that AOTInductor has compiled."""

    def accelerate(self):
        from transformers_xl import compile_generation

        super().accelerate()
        compile_generation(self.model.eval(), self.task.batch)


class OursPlain(Ours):
    """As a program gets it that switches on nothing."""

    def accelerate(self):
        pass


class OursTorch(Ours):
    """With freed memory kept."""

    def accelerate(self):
        from transformers_xl.runs.allocator import keep_freed_memory

        keep_freed_memory()


class OursOneDNN(OursTorch):
    """With freed memory kept, and linear layers that multiply by oneDNN."""

    def accelerate(self):
        from transformers_xl.runs.onednn_linear import use_onednn_linear

        super().accelerate()
        use_onednn_linear(self.model)


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
            mem_len=self.task.memory, div_val=1, same_length=True, clamp_len=-1, dropout=0.0, dropatt=0.0, adaptive=True,
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

    def prediction(self, ids, memory):
        outputs = self.model(ids, mems=memory)
        return outputs.prediction_scores, outputs.mems


class XTransformers(Peer):
    """x-transformers with the relative position bias of T5, and memory."""

    def build(self):
        from x_transformers import Decoder, TransformerWrapper

        size, task = self.size, self.task
        layers = Decoder(
            dim=size["width"], depth=size["layers"], heads=size["heads"], attn_dim_head=size["width"] // size["heads"],
            rel_pos_bias=True, ff_mult=size["inner"] // size["width"], attn_flash=False, pre_norm=False,
        )  # fmt: skip
        return TransformerWrapper(
            num_tokens=VOCAB_SIZE, max_seq_len=task.segment, max_mem_len=task.memory, use_abs_pos_emb=False,
            tie_embedding=True, attn_layers=layers,
        )  # fmt: skip

    def read(self, ids):
        logits, self.memory = self.model(ids, mems=self.memory, return_mems=True)
        return torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:])


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
    "ours_recompute": OursRecompute,
    "ours_static": OursStatic,
    "ours_compiled": OursCompiled,
    "ours_before": OursPlain,
    "ours_plain": OursPlain,
    "ours_torch": OursTorch,
    "ours_onednn": OursOneDNN,
    "floor": Floor,
    "old": OldTransfoXL,
    "x_transformers": XTransformers,
    "gpt2": GPT2,
    "mistral": Mistral,
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
        elif request["do"] == "kept":
            answer["bytes"] = peer.kept_for_backward()
        elif request["do"] == "save_weights":
            torch.save(peer.model.state_dict(), request["path"])
        elif request["do"] == "load_weights":
            peer.load(torch.load(request["path"], weights_only=True))
        elif request["do"] == "predict":
            torch.save(peer.predictions(), request["path"])
        elif request["do"] == "versions":
            answer = {"torch": torch.__version__, "python": sys.version.split()[0]}
            for package in ("transformers", "x_transformers"):
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    answer[package] = importlib.metadata.version(package)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
