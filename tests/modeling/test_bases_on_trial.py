"""What a trial shows of a base: masks that ignore `and_mask_function`, keys that cannot move, bidirectional attention."""

import pytest
import torch
from tiny import FLOAT32
from tiny_bases import GROUPED, ROPE, SIZES, VOCAB_SIZE, tiny_base
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from transformers_xl import SegmentMemoryForCausalLM, add_memory
from transformers_xl.modeling.pretrained import token_bases
from transformers_xl.modeling.pretrained.backbone_cache import written_by
from transformers_xl.modeling.pretrained.supported_bases import table_of_positions

# its Mamba layers read several tokens as a new text, whatever the cache holds
JAMBA = {
    "attn_layer_offset": 1, "attn_layer_period": 2, "num_experts": 1, "num_experts_per_tok": 1, "mamba_d_state": 8,
    "mamba_dt_rank": 4, "use_mamba_kernels": False, "initializer_range": 0.2, "num_key_value_heads": 2,
}  # fmt: skip
ZAMBA = {
    "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_d_state": 8,
    "layers_block_type": ["mamba", "hybrid"] * 2, "use_mamba_kernels": False, "head_dim": 16,
}  # fmt: skip
MINIMAX = {"num_local_experts": 2, "head_dim": 8, "num_key_value_heads": 2}  # it takes no cache but its own
TOKENS = {"kind": "tokens", "segment_length": 4, "num_memory_tokens": 2}


def base_of(model_type: str, **fields):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES | fields)).eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(0))


def token_by_token(model: SegmentMemoryForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    logits, mems = [], None
    for index in range(ids.shape[1]):
        output = model(ids[:, index : index + 1], mems=mems)
        mems = output.mems
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["doge", "hrm_text", "gemma3_text"])
def test_a_base_with_masks_of_its_own_sees_the_window_alone(model_type):
    """The masks of the first two take no function that says what a token sees."""
    model, ids = add_memory(base_of(model_type, **GROUPED), mem_len=4, num_sinks=0), tokens(2, 12)
    one = model(ids).logits
    torch.testing.assert_close(token_by_token(model, ids), one, **FLOAT32)
    padded = torch.tensor([[1] * 6, [1] * 2 + [0] * 4])
    mems = model(ids[:, :6], attention_mask=padded).mems
    alone = model(ids[1:, 6:9], mems=model(ids[1:, :2]).mems).logits
    torch.testing.assert_close(model(ids[:, 6:9], mems=mems).logits[1:], alone, **FLOAT32)
    if model_type == "hrm_text":  # its layers run several times and reach farther
        return
    changed = ids.clone()
    changed[:, 0] = 3 + (ids[:, 0] - 2) % (VOCAB_SIZE - 3)
    reach = 2 * (4 - 1)  # of two layers
    assert not torch.equal(model(changed).logits[:, reach], one[:, reach])
    torch.testing.assert_close(model(changed).logits[:, reach + 1 :], one[:, reach + 1 :], **FLOAT32)


@torch.no_grad()
@pytest.mark.parametrize("num_sinks", [0, 2])
def test_rotations_are_measured_where_values_depend_on_rounding(num_sinks):
    """GPT-OSS weighs the values of a token by a learned sink: its later layers saw noise of bfloat16 as positions."""
    base = tiny_base("gpt_oss").float()
    for parameter in base.parameters():
        parameter.mul_(3)
    model = add_memory(base, mem_len=8, num_sinks=num_sinks)
    model.reader.rotations = None
    with torch.autocast("cpu", torch.bfloat16):
        rotations = model.reader.measured(model.backbone)
    model.reader.rotations = None
    for here, wanted in zip(rotations, model.reader.measured(model.backbone), strict=True):
        torch.testing.assert_close(here.keys.angles, wanted.keys.angles)


def test_what_a_position_writes_differs_by_its_rotation_alone():
    """Values of GPT-OSS have no position: bit for bit the same, whatever rounding makes of the scores of a sink."""
    base = tiny_base("gpt_oss").float()
    for layer, (_, values) in enumerate(written_by(base, 4, [0, 1, 1023, 4097])):
        for rows in values.split(4):
            assert torch.equal(rows, values[:4]), layer


@pytest.mark.parametrize(
    ("model_type", "fields", "memory", "message"),
    [
        ("ctrl", {"n_embd": 32, "n_layer": 2, "n_head": 2, "dff": 32}, {}, "is a ctrl, which cannot be read"),
        ("bert-generation", {}, TOKENS, "whose tokens see those after them"),
        ("modernbert-decoder", {}, {}, "is a modernbert-decoder, which cannot be read with `kind`='window'"),
        ("bart", {"d_model": 32, "is_encoder_decoder": False}, TOKENS, "is a bart, which cannot be read"),
        ("minimax", MINIMAX, TOKENS, "is a minimax, which cannot be read with `kind`='tokens' .*: use another base"),
        ("minimax", MINIMAX, {}, "'linear_attention', which remembers in its own way: try `kind`='tokens'"),
        ("jamba", JAMBA, TOKENS, "is a jamba, whose Mamba layers read several tokens as a new text"),
        ("zamba", ZAMBA, TOKENS, "is a zamba, whose Mamba layers read several tokens as a new text"),
        ("beam", {"num_key_value_heads": 2}, {}, "is a beam, whose queries are scaled by their position"),
    ],
)
def test_what_cannot_be_read_is_refused_when_the_memory_is_added(model_type, fields, memory, message):
    with pytest.raises(ValueError, match=message):
        add_memory(base_of(model_type, **fields), **memory)


@torch.no_grad()
def test_the_decoder_of_a_base_that_takes_itself_for_it():
    """transformers' `get_decoder()` of Llama 4 is the whole model, which gives logits where hidden states are asked for."""
    fields = {"num_local_experts": 2, "intermediate_size_mlp": 32, "num_key_value_heads": 2, "head_dim": 8}
    base = base_of("llama4_text", **fields)
    assert base.get_decoder() is base
    model, ids = add_memory(base, **TOKENS), tokens(2, 11)
    one = model(ids, labels=ids)
    torch.testing.assert_close(token_by_token(model, ids), one.logits, **FLOAT32)
    torch.testing.assert_close(model(ids, labels=ids, logits_to_keep=1).loss, one.loss)
    assert model.get_decoder() is base.model


def test_several_tokens_after_a_cache_are_tried(monkeypatch):
    """Where no list names the base."""
    monkeypatch.setattr(token_bases, "READ_ANEW", set())
    with pytest.raises(
        ValueError, match="is a jamba, which reads a token otherwise where those before it are in a cache"
    ):
        add_memory(base_of("jamba", **JAMBA), **TOKENS)


def test_queries_that_grow_with_their_position_stay_where_they_do_not():
    """Ministral 3 scales the queries from `original_max_position_embeddings` on: the window is moved back before."""
    rope = ROPE | {"original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}
    config = AutoConfig.for_model("ministral3", **SIZES | GROUPED, rope_parameters=rope)
    assert table_of_positions(config) == 64
    model = add_memory(AutoModelForCausalLM.from_config(config).double().eval(), mem_len=8, num_sinks=0)
    ids = tokens(1, 150)
    with torch.no_grad():
        reads = [read_in(model, ids, size) for size in (20, 7)]
    torch.testing.assert_close(reads[0], reads[1], atol=1e-4, rtol=1e-4)  # the base has angles in float32
    with pytest.raises(ValueError, match="depend on distances alone"):
        model(tokens(1, 100))


def read_in(model: SegmentMemoryForCausalLM, ids: torch.Tensor, size: int) -> torch.Tensor:
    logits, mems = [], None
    for piece in ids.split(size, dim=1):
        output = model(piece, mems=mems)
        mems = output.mems
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def test_the_cache_of_a_base_is_not_that_of_the_memory():
    """Folders of Gemma 2 and 3 ask for a hybrid cache in their `generation_config`."""
    base = tiny_base("gemma2")
    base.generation_config = GenerationConfig(cache_implementation="hybrid", eos_token_id=None, pad_token_id=0)
    model = add_memory(base, mem_len=8)
    assert model.generate(tokens(1, 4), max_new_tokens=3).shape == (1, 7)
    assert base.generation_config.cache_implementation == "hybrid"
