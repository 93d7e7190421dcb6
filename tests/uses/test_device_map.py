"""`device_map`: weights on several devices, or on disk while they are not needed, and memory that goes along."""

from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model
from accelerate.utils import send_to_device
from tiny import AROUND_BASES, FLOAT32, in_turn, memory_of, read, tiny_model, tokens, variants
from torch.utils._pytree import tree_leaves
from transformers import AutoModel, AutoModelForCausalLM

from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.ops.relative_attention import Biases


def saved(model_type: str, folder: Path, **fields):
    """A small model, and what loads it again."""
    head = "model" if VARIANTS[model_type].causal_lm_class is None else "causal_lm"
    model = tiny_model(model_type, head, torch.float32, **fields)
    model.save_pretrained(folder, include_code=False)
    return model, AutoModel if head == "model" else AutoModelForCausalLM


def parts(model, kind, others=None) -> dict:
    """A map of every layer to `kind`, and of all else to `others` (None: to the same)."""
    others = kind if others is None else others
    base = model.base_model
    prefix = "" if base is model else "model."
    places = {prefix + name: others for name, _ in base.named_children() if name != "layers"}
    places |= {f"{prefix}layers.{name}": kind for name, _ in base.layers.named_children()}
    return places | {name: others for name, _ in model.named_children() if base is not model and name != "model"}


@torch.no_grad()
def segments(model, device: str = "cpu") -> list[torch.Tensor]:
    """Of a text, in both forms of memory."""
    ids = tokens(2, 20).to(device)
    return [read(model, ids, [7, 7, 6], use_cache=use_cache)[0] for use_cache in (None, True)]


@torch.no_grad()
def used(model, device: str = "cpu") -> list[torch.Tensor]:
    """Segments in both forms, generation with memory in both forms, and goes on from that."""
    ids, results = tokens(2, 20).to(device), segments(model, device)
    if model.can_generate():
        value = memory_of(model(ids))
        settings = {"do_sample": False, "max_new_tokens": 3, "return_dict_in_generate": True}
        first = model.generate(ids[:, :3], **({} if value.get("mems") is None else value), **settings)
        going_on = {} if first.mems is None else {"mems": first.mems}
        second = model.generate(first.sequences[:, -1:], **going_on, **settings)
        results += [first.sequences, second.sequences]
    return [result.cpu() for result in results]


def assert_equal(results: list[torch.Tensor], expected: list[torch.Tensor], **tolerance: float) -> None:
    for mine, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **(tolerance or FLOAT32))


OWN = [each for each in variants() if each not in AROUND_BASES]  # a base says itself what is not split


def test_auto_is_the_processor_where_there_is_no_accelerator(tmp_path: Path):
    model, auto_class = saved("transformer_xl", tmp_path / "model")
    assert_equal(used(auto_class.from_pretrained(tmp_path / "model", device_map="auto").cpu()), used(model))


@torch.no_grad()
@pytest.mark.parametrize(("model_type", "use_cache"), in_turn(OWN, (None, True)))
def test_weights_on_disk(model_type: str, use_cache: bool | None, tmp_path: Path):
    """A weight is there while its module runs only: a model that read one at any other time would fail here, as it would
    on several devices."""
    model, auto_class = saved(model_type, tmp_path / "model")
    ids = tokens(2, 13)
    expected, _ = read(model, ids, [7, 6], use_cache)
    on_disk = auto_class.from_pretrained(
        tmp_path / "model", device_map=parts(model, "disk"), offload_folder=tmp_path / "offload"
    )
    assert {parameter.device.type for parameter in on_disk.parameters()} == {"meta"}
    torch.testing.assert_close(read(on_disk, ids, [7, 6], use_cache)[0], expected, **FLOAT32)


def test_layers_alone_on_disk_and_biases_of_each_layer(tmp_path: Path):
    model, auto_class = saved("transformer_xl", tmp_path / "model", share_relative_bias=False)
    places = parts(model, "disk", "cpu")
    loaded = auto_class.from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload")
    assert {
        loaded.model.embed_tokens.weight.device.type,
        loaded.model.layers[0].self_attn.r_proj.weight.device.type,
    } == {
        "cpu",
        "meta",
    }
    assert_equal(used(loaded), used(model))


@pytest.mark.parametrize("model_type", OWN)
def test_layers_are_not_split(model_type: str):
    """Accelerate keeps together what a residual sum goes around: the layers, by the name of their class."""
    model = tiny_model(model_type)
    assert {type(layer).__name__ for layer in model.layers.children()} <= set(model._no_split_modules)


ON_A_GPU = {"atol": 1e-4, "rtol": 1e-3}  # SHA-RNN differs by 3e-5 from a CPU


@pytest.fixture
def _exact_recurrence(monkeypatch):
    """cuDNN's recurrent networks take TF32 for float32 by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.gpu
@pytest.mark.usefixtures("_exact_recurrence")
@pytest.mark.parametrize("model_type", variants())
def test_one_gpu(model_type: str, tmp_path: Path):
    model, auto_class = saved(model_type, tmp_path / "model")
    for places in ("auto",) if model_type in AROUND_BASES else ("auto", parts(model, "cpu", 0)):
        loaded = auto_class.from_pretrained(tmp_path / "model", device_map=places)
        assert_equal(used(loaded, "cuda"), used(model), **ON_A_GPU)


@pytest.mark.gpu
@pytest.mark.usefixtures("_exact_recurrence")
@pytest.mark.parametrize("model_type", OWN)
def test_layers_on_two_devices(model_type: str, tmp_path: Path):
    """The first layer on the CPU and the second on the GPU, each with its memory there."""
    model, auto_class = saved(model_type, tmp_path / "model")
    loaded = auto_class.from_pretrained(tmp_path / "model")
    places = parts(model, "cpu")
    places[[name for name in places if "layers." in name][-1]] = 0
    dispatch_model(loaded, places, main_device="cpu")
    assert_equal(used(loaded), used(model), **ON_A_GPU)


def test_what_layers_are_told_follows_them_to_their_device():
    """Accelerate looks into tuples, named ones too: every tensor is found, whatever it lies in."""
    mask, ids = torch.tensor([[True, True, False]]), torch.tensor([[0, 1, 1]])
    memory = Memory(
        (LayerMemory((torch.zeros(1, 2, 8),), (torch.zeros(1, 4),)),), torch.tensor([2]), torch.tensor([5])
    )
    segment = Segment.of(2, memory.lengths, memory.tokens_read, 3, Call.of(mask, ids.bool(), None))
    positions, bias = torch.zeros(4, 8), Biases(torch.zeros(2, 4), torch.zeros(2, 4))
    context = LayerContext(segment, 4, 8, segment.visible(), positions=positions, bias=bias, plan=(mask, {"ids": ids}))
    moved = send_to_device({"context": context, "past": memory}, "meta")
    assert [type(each) for each in moved.values()] == [LayerContext, Memory]
    assert {each.device.type for each in tree_leaves(moved) if isinstance(each, torch.Tensor)} == {"meta"}
    assert (moved["context"].window, moved["context"].layer_cache, moved["context"].segment.length) == (4, None, 3)
    assert moved["context"].segment.visible().device.type == "meta"
    assert context.mask.device.type == "cpu"
