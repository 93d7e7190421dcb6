"""A memory on disk: what goes on in another process, what a file is refused for, and which model it belongs to."""

import copy
import gc
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from accelerate import disk_offload
from forked import run_processes
from going_on import going_on, loaded
from killed import killed_at_each_write
from memories import CARRYING, FEW, FORMS, GENERATING, LENGTHS, memory_of_rows, model_of
from optional_packages import needs
from safetensors import safe_open
from safetensors.torch import load_file
from tiny import (
    result_of,
    tensors_of,
    tiny_model,
    tokens,
)
from tiny_bases import tiny_base
from torch import nn

from transformers_xl import Memory, add_memory, cat_memories
from transformers_xl.modeling.memory import memory_file
from transformers_xl.modeling.memory.memory_file import hash_of


def assert_equal(ours: Memory, expected: Memory) -> None:
    """Bit for bit, of the same names and types."""
    assert list(ours.named_tensors()) == list(expected.named_tensors())
    for pair in zip(tensors_of(ours), tensors_of(expected), strict=True):
        torch.testing.assert_close(*pair, atol=0, rtol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memories")


# --- another process


@pytest.mark.slow
def test_it_goes_on_in_another_process_bit_for_bit(folder):
    """Of every variant, in both forms: logits, what is remembered next, and greedy texts."""
    expected = {}
    for model_type in CARRYING:
        saved = folder / model_type.replace("/", "-")
        model_of(model_type, torch.float32).save_pretrained(saved, include_code=False)
        model = loaded(saved)  # where weights lie may change the order of a sum
        for use_cache in FORMS.values():
            here = folder / f"{saved.name} {use_cache}"
            memory_of_rows(model, use_cache).save(here, model, tokens(3, 2, seed=8))
            expected[here.name] = going_on(model, here)
    done = run_processes(
        Path(__file__).parents[1] / "helpers" / "going_on.py", folder, torch.get_num_threads(), processes=1
    )
    assert done.succeeded, done.stderr
    for name, tensors in expected.items():
        there = load_file(folder / f"{name} went on")
        assert tensors.keys() == there.keys()
        assert all(torch.equal(tensors[key], there[key]) for key in tensors), name


# --- what it holds


@pytest.mark.parametrize("model_type", CARRYING)
def test_rows_are_taken_joined_repeated_and_moved_after_it_was_loaded(model_type, tmp_path):
    model = model_of(model_type)
    one, more = memory_of_rows(model, lengths=(3,)), memory_of_rows(model)
    one.save(tmp_path / "one", model)
    more.save(tmp_path / "more", model, tokens(3, 1))
    first, second = Memory.load(tmp_path / "one", model), Memory.load(tmp_path / "more", model)
    assert first.unread_ids is None
    assert torch.equal(second.unread_ids, tokens(3, 1))
    assert_equal(second.memory, more)
    joined = cat_memories([first.memory, second.memory])
    assert joined.tokens_read.tolist() == [3, *LENGTHS]
    ids = tokens(1, 4, seed=2)
    for row, memory in enumerate((one, *(more.rows([row]) for row in range(3)))):
        expected = result_of(model(ids, mems=memory))
        alone = result_of(model(ids, mems=joined.rows([row])))
        torch.testing.assert_close(alone, expected, atol=1e-10, rtol=1e-10)
        twice = result_of(model(ids.expand(2, -1), mems=joined.rows([row]).repeat(2)))
        torch.testing.assert_close(twice, expected.expand_as(twice), atol=1e-10, rtol=1e-10)
    assert {each.device.type for each in tensors_of(second.memory.to("meta"))} == {"meta"}


@pytest.mark.parametrize("model_type", FEW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_stay_what_they_are(model_type, dtype, tmp_path):
    """Those of a model in half precision; and what was made smaller to be put away, with any model."""
    for kind in (dtype, torch.float32):
        model = model_of(model_type, kind)
        for memory in (memory_of_rows(model), memory_of_rows(model).to(dtype=dtype)):
            memory.save(tmp_path / "memory", model)
            loaded = Memory.load(tmp_path / "memory", model).memory
            assert_equal(loaded, memory)
            assert result_of(model(tokens(3, 2), mems=loaded)).dtype == kind


@pytest.mark.parametrize(
    ("model_type", "cache"),
    [(each, None) for each in FEW if each in GENERATING] + [(each, "static") for each in ("transformer_xl", "gtrxl")],
)
def test_what_generate_remembers_is_saved(model_type, cache, tmp_path):
    model = model_of(model_type, torch.bfloat16)
    settings = {"do_sample": False, "return_dict_in_generate": True, "cache_implementation": cache}
    settings |= {"disable_compile": True} if cache else {}
    written = model.generate(tokens(2, 12), max_new_tokens=5, **settings)
    written.mems.save(tmp_path / "memory", model, written.sequences[:, -1:])
    memory, unread_ids = Memory.load(tmp_path / "memory", model)
    again = model.generate(unread_ids, mems=memory, max_new_tokens=5, **settings)
    expected = model.generate(written.sequences[:, -1:], mems=written.mems, max_new_tokens=5, **settings)
    assert torch.equal(again.sequences, expected.sequences)
    assert memory.num_bytes == written.mems.num_bytes == sum(each.nbytes for each in tensors_of(written.mems))


def test_the_header_says_what_it_is(tmp_path):
    model = model_of("transformer_xl")
    memory_of_rows(model).save(tmp_path / "memory", model, [[1], [2], [3]])
    with safe_open(tmp_path / "memory", "pt") as file:
        header = file.metadata()
        assert {"lengths", "tokens_read", "unread_ids", "layers.0.columns.0"} <= {*file.keys()}
    assert header["model_type"] == "transformer_xl"
    assert json.loads(header["tokens_read"]) == [*LENGTHS]
    assert json.loads(header["config"])["mem_len"] == model.config.mem_len
    assert len(header["weights"]) == len(header["head"]) == len(header["sha256"]) == 64


# --- whose it is


def made(path: Path, model, memory: Memory | None = None) -> Path:
    (memory_of_rows(model) if memory is None else memory).save(path, model)
    return path


def test_another_model_is_refused(tmp_path):
    mine = model_of("transformer_xl")
    path = made(tmp_path / "memory", mine)
    for other, said in (
        (model_of("gtrxl"), "is the memory of a 'transformer_xl', and `model` is a 'gtrxl'"),
        (
            model_of("transformer_xl", mem_len=4),
            r"`mem_len`=8, and `model` has 4: call `model.resize_memory\(8\)`, or",
        ),
        (model_of("transformer_xl", same_length=False), "`same_length`=True, and `model` has False"),
        (model_of("transformer_xl", num_hidden_layers=3), "`num_hidden_layers`=2, and `model` has 3"),
        (
            model_of("transformer_xl", torch.float32),
            "by a model in 'torch.float64', and `model` is in 'torch.float32'",
        ),
        (nn.Linear(2, 2), "`model` is a Linear, which remembers nothing"),
    ):
        with pytest.raises(ValueError, match=said):
            Memory.load(path, other)
    again = model_of("transformer_xl", mem_len=4)
    again.resize_memory(8)
    assert_equal(Memory.load(path, again).memory, memory_of_rows(mine))


def test_a_base_with_another_window_is_refused(tmp_path):
    model = model_of("segment_memory")
    path = made(tmp_path / "memory", model)
    model.config.text_config.sliding_window = 7
    with pytest.raises(ValueError, match="`text_config.sliding_window`=5, and `model` has 7"):
        Memory.load(path, model)


@pytest.mark.parametrize("model_type", ["transformer_xl", "segment_memory"])
def test_each_weight_counts(model_type, tmp_path):
    """Written to through torch, through `.data`, or replaced; and as it was, it is the same model again."""
    model = model_of(model_type)
    path = made(tmp_path / "memory", model)
    for name, parameter in model.named_parameters():
        before, index = parameter.detach().clone(), parameter.numel() // 3
        with torch.no_grad():
            parameter.view(-1)[index] += 1
        with pytest.raises(ValueError, match="made with other weights"):
            Memory.load(path, model)
        with torch.no_grad():
            parameter.copy_(before)
        Memory.load(path, model)
        for change in (lambda old: old.data.mul_(1.5).add_(1.0), lambda old: setattr(old, "data", old.data + 1)):
            change(parameter)
            with pytest.raises(ValueError, match="made with other weights"):
                Memory.load(path, model)
            parameter.data = before.clone()
        Memory.load(path, model)
        assert name in memory_file.weights_of(model)


def test_weights_are_hashed_once(tmp_path, monkeypatch):
    model, hashed = model_of("transformer_xl"), []
    monkeypatch.setattr(
        memory_file, "hash_of", lambda tensors, *header: hashed.append(len(tensors)) or hash_of(tensors, *header)
    )
    for _ in range(3):
        Memory.load(made(tmp_path / "memory", model), model)
    own = len(memory_of_rows(model).named_tensors())
    assert [each for each in hashed if each != own] == hashed[:2]  # those of the backbone and of its head
    assert len(hashed) == 2 + 2 * 3


def test_nothing_waits_for_the_collector(tmp_path):
    """Views of the weights, or copies of quantized ones, in a cycle would stay for thousands of turns of a server."""
    model = model_of("transformer_xl")
    path = made(tmp_path / "memory", model)
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        for _ in range(3):
            Memory.load(path, model).memory.save(path, model)
        assert sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()) <= before
    finally:
        gc.enable()


def test_the_same_model_elsewhere(tmp_path):
    """A copy, one without its head or with another one, with adapters around it that change nothing yet, in training."""
    peft = needs("peft")  # before the model is built, which tells it where adapters go
    model = model_of("transformer_xl", torch.float32)
    path = made(tmp_path / "memory", model)
    classifier = tiny_model("transformer_xl", "sequence_classification", torch.float32)
    classifier.model.load_state_dict(model.model.state_dict())
    other = copy.deepcopy(model)
    for same in (other, copy.deepcopy(model).train(), model.model, torch.compile(model, backend="eager")):
        assert_equal(Memory.load(path, same).memory, memory_of_rows(model))
    made(tmp_path / "of the backbone", model.model)
    for same in (model, classifier):
        Memory.load(tmp_path / "of the backbone", same)
    other.config.pad_token_id, other.config.dropout = 0, 0.5  # change no result
    Memory.load(path, other)
    adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(init_lora_weights=False))
    with pytest.raises(ValueError, match="made with other weights"):
        Memory.load(path, adapted)
    path = made(tmp_path / "adapted", adapted, memory_of_rows(adapted))
    assert_equal(Memory.load(path, adapted).memory, memory_of_rows(adapted))
    adapted.add_adapter("second", peft.LoraConfig(init_lora_weights=False))
    path = made(tmp_path / "with the first", adapted, memory_of_rows(adapted))
    adapted.set_adapter("second")
    with pytest.raises(ValueError, match="made with other weights"):
        Memory.load(path, adapted)
    adapted.set_adapter("default")
    Memory.load(path, adapted)
    with adapted.disable_adapter(), pytest.raises(ValueError, match="made with other weights"):
        Memory.load(path, adapted)
    layer = next(part for part in adapted.modules() if hasattr(part, "set_scale"))
    layer.set_scale("default", 2.0)
    with pytest.raises(ValueError, match="made with other weights"):
        Memory.load(path, adapted)


def test_weights_that_lie_on_disk(tmp_path):
    """They are the same ones; Accelerate reads them when they are needed."""
    path = made(tmp_path / "memory", model_of("transformer_xl", torch.float32))
    away = model_of("transformer_xl", torch.float32)
    disk_offload(away, tmp_path / "weights", torch.device("cpu"))
    assert next(away.parameters()).is_meta
    memory = Memory.load(path, away).memory
    made(tmp_path / "again", away, memory)
    assert_equal(Memory.load(tmp_path / "again", model_of("transformer_xl", torch.float32)).memory, memory)


@pytest.mark.filterwarnings("ignore")  # torch names torchao as its successor
def test_weights_in_eight_bits(tmp_path):
    model = model_of("transformer_xl", torch.float32)
    coarse = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    path = made(tmp_path / "memory", coarse)
    assert_equal(Memory.load(path, coarse).memory, memory_of_rows(coarse))
    with pytest.raises(ValueError, match="made with other weights"):
        Memory.load(path, model)


def test_a_memory_of_another_model_is_not_saved(tmp_path):
    model = model_of("transformer_xl")
    memory = memory_of_rows(model)
    wide = memory_of_rows(model_of("transformer_xl", hidden_size=64, num_attention_heads=8))
    for wrong, ids, said in (
        (wide, None, r"shape \(3, 4, 8, 8\)"),
        (memory._replace(layers=memory.layers[:1]), None, "1 layers"),
        (memory, tokens(2, 1), r"`unread_ids` has shape \(2, 1\)"),
        (memory, torch.full((3, 1), 37), r"integers in 0\.\.36"),
        (memory, torch.zeros(3, 1), "torch.float32"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong.save(tmp_path / "memory", model, ids)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def small(folder) -> tuple[nn.Module, bytes]:
    """A model, and the file of a memory of it."""
    model = model_of("compressive_transformer")
    memory_of_rows(model).save(folder / "small", model, tokens(3, 1))
    return model, (folder / "small").read_bytes()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "mpt"])
@torch.no_grad()
def test_around_other_bases(family, tmp_path):
    model = add_memory(tiny_base(family).float(), kind="window", mem_len=8)
    model.save_pretrained(tmp_path / "model", include_code=False)
    memory_of_rows(model).save(tmp_path / "memory", model, tokens(3, 1))
    again = loaded(tmp_path / "model")
    memory, unread_ids = Memory.load(tmp_path / "memory", again)
    torch.testing.assert_close(
        again(unread_ids, mems=memory).logits, model(unread_ids, mems=memory_of_rows(model)).logits
    )


# --- written whole or not at all


def test_what_was_there_stays_where_a_write_is_killed_or_fails(small, tmp_path, monkeypatch):
    model, data = small
    path, memory = tmp_path / "memory", memory_of_rows(model, lengths=(2,))

    def prepare() -> None:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        path.write_bytes(data)

    read = []
    for _ in killed_at_each_write(tmp_path, prepare, lambda: memory.save(path, model)):
        read.append(Memory.load(path, model).memory.tokens_read.tolist())
    assert read[0] == [*LENGTHS]
    assert read[-1] == [2]
    assert len(read) > 2
    prepare()

    def full(*args, **kwargs) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory_file, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        memory.save(path, model)
    assert os.listdir(tmp_path) == ["memory"]
    assert path.read_bytes() == data
