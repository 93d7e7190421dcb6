"""Small models of every variant, and the few steps that many tests share: reading in segments, and a row on its own."""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import torch
from cached_modules import CachedModule
from tiny_bases import tiny_base_config
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

import transformers_xl  # noqa: F401  registers the variants
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.auto import ENCODERS, VARIANTS
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory

VOCAB_SIZE = 37
MEM_LEN = 8
# float64 models: what is equal is equal to ten places, and what is wrong cannot hide in a tolerance
EXACT = {"atol": 1e-10, "rtol": 1e-10}
FLOAT32 = {"atol": 1e-5, "rtol": 1e-4}

# memory around a base: its kind and the family of the base; the second name is that of these tests. A window around every
# family: tests/modeling/test_memory_window.py
AROUND_BASES = {
    "segment_memory": ("window", "qwen3"),  # one layer has a window of its own, which is narrower
    "segment_memory/tokens": ("tokens", "phi"),
}
# read segment by segment between memory tokens: a call has no one row of keys that weights could belong to
SEGMENT_BY_SEGMENT = ("recurrent_memory_transformer", "segment_memory/tokens")
TOKENS_ROW = {"memory": "own", "croppable": False, "recurrent": True}  # what a row of the table promises for windows
# they remember keys and values alone, and none that is not seen again
WITHOUT_OWN_KEYS = ("segment_memory", "streaming_transformer")
# what a call does depends on where its tokens stand in their blocks: there is no one graph of it
NOT_ONE_GRAPH = (*AROUND_BASES, *SEGMENT_BY_SEGMENT, "memorizing_transformer")
# the rows of the table, and one for each further base
ROWS = VARIANTS | {
    name: dataclasses.replace(VARIANTS["segment_memory"], **(TOKENS_ROW if kind == "tokens" else {}))
    for name, (kind, _) in AROUND_BASES.items()
}
# what a small model of each type is made of, those of encoders too, which have tests of their own
MADE_OF = ROWS | ENCODERS
# every model class of the table: the variant, and what stands before `_class` in its row
HEADS = [
    (model_type, head)
    for model_type, row in ROWS.items()
    for head in ("model", "causal_lm", "sequence_classification", "token_classification", "masked_lm")
    if getattr(row, f"{head}_class") is not None
]
# one that remembers windows alone, one that also remembers what a cache derives from them, and both kinds around a base
IN_EVERY_CASE = ("transformer_xl", "compressive_transformer", *AROUND_BASES)
# a window, blocks that leave one, a state beside it, keys of a base, memory tokens: for mechanisms that only read, copy,
# reorder and cut a memory, which tests over all variants hold it to
FEW_MEMORIES = ("transformer_xl", "compressive_transformer", "sha_rnn", "segment_memory", "segment_memory/tokens")
# what makes a small model show what its paper adds
FIELDS = {
    "block_recurrent": {"block_length": 3, "num_states": 4},
    "longformer_encoder": {"attention_window": 4},
    "memorizing_transformer": {"block_length": 3, "num_memory_keys": 14, "num_retrieved": 3},
    "recurrent_memory_transformer": {"num_memory_tokens": 2, "bptt_segments": 8},
    "compressive_transformer": {"compressed_mem_len": 3, "compression_rate": 2},
    "universal_transformer": {"halting_threshold": 0.8},  # so that positions halt at every step
    "depth_adaptive_transformer": {"confidence_thresholds": 0.4},  # so that tokens leave after every layer
}


def promises(
    model_type: str,
    causal: bool | None = None,
    memory: Iterable[str] | None = None,
    croppable: bool | None = None,
    causal_lm: bool = False,
    states: bool | None = None,
    recurrent: bool | None = None,
) -> bool:
    """Whether a row promises what a test needs."""
    row = ROWS[model_type]
    return (
        causal in (None, row.causal)
        and (memory is None or row.memory in memory)
        and croppable in (None, row.croppable)
        and (row.causal_lm_class is not None or not causal_lm)
        and states in (None, has_states(model_type))
        and recurrent in (None, row.recurrent)
    )


def variants(**needs) -> list[str]:
    """Model types of the table whose row promises what a test needs."""
    return [model_type for model_type in VARIANTS if promises(model_type, **needs)]


def models(**needs) -> list[str]:
    """[`variants`], and memory around further bases: what has to hold whatever the base."""
    return [model_type for model_type in ROWS if promises(model_type, **needs)]


def one_of_each_memory(model_types: Iterable[str]) -> list[str]:
    """The first of those that remember the same kinds of things, as long: `generate()` meets memories, not what a layer
    computes, which one test over all variants holds against forwards of the whole text."""
    return list({_memories(model_type): model_type for model_type in reversed(list(model_types))}.values())[::-1]


def one_of_each_kind(model_types: Iterable[str]) -> list[str]:
    """The first of those with the same kinds of memory, in layers and beside them, of one length or of several."""
    return list({_kinds(model_type): model_type for model_type in reversed(list(model_types))}.values())[::-1]


@functools.cache
def _kinds(model_type: str) -> tuple:
    memory, row = empty_memory(model_type), ROWS[model_type]
    lengths = {layer.num_columns for layer in memory.layers}
    return row.croppable, len(lengths), frozenset(map(_sizes, memory.layers)), len(memory.state)


@functools.cache
def _memories(model_type: str) -> tuple:
    memory, row, (base, _) = empty_memory(model_type), ROWS[model_type], AROUND_BASES.get(model_type, ("", ""))
    layers = [(layer.num_columns, *_sizes(layer)) for layer in memory.layers]
    return base, row.model_class.run_layers, row.model_class.plan, row.croppable, *layers, len(memory.state)


def _sizes(layer: LayerMemory) -> tuple[int, ...]:
    return tuple(map(len, layer))


_CONFIGS: dict[str, PreTrainedConfig] = {}


def tiny_config(model_type: str, **fields):
    """Of a tiny model: a copy, because a config takes longer to check than to copy."""
    key = repr((model_type, sorted(fields.items())))
    if key not in _CONFIGS:
        _CONFIGS[key] = new_config(model_type, **fields)
    return copy.deepcopy(_CONFIGS[key])


def new_config(model_type: str, **fields):
    if model_type in AROUND_BASES:
        return config_around_base(model_type, **fields)
    defaults = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "mem_len": MEM_LEN,
        "segment_length": 6,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        # large enough that attention is far from uniform and that logits differ
        "initializer_range": 0.2,
    }
    if MADE_OF[model_type].memory == "none":
        del defaults["mem_len"]
        defaults["segment_length"] = 64  # the longest text that it reads
    if lacks(model_type, "intermediate_size"):
        del defaults["intermediate_size"]
    own = FIELDS.get(model_type, FIELDS.get(model_type.removesuffix("_encoder"), {}))
    return AutoConfig.for_model(model_type, **(defaults | own | fields))


def lacks(model_type: str, name: str) -> bool:
    """Whether the config of a variant has no such field."""
    return name not in {field.name for field in dataclasses.fields(MADE_OF[model_type].config_class)}


def config_around_base(model_type: str, **fields) -> SegmentMemoryConfig:
    """That of a base with memory around it; `fields` of both."""
    kind, family = AROUND_BASES[model_type]
    if kind == "tokens":  # its memory has one length, whatever that of windows
        fields.pop("mem_len", None)
    # what every wrapper has by itself
    same = {"same_length": True, "initial_memory": "empty", "dropout": 0.0, "norm_position": "pre"}
    fields = {name: value for name, value in fields.items() if name not in same or value != same[name]}
    own = {field.name for field in dataclasses.fields(SegmentMemoryConfig)}
    own |= vars(PreTrainedConfig).keys()
    of_memory = {"segment_length": 6, "kind": kind}
    # start and scale so that what is written can be seen
    seen = {"num_memory_tokens": 2, "memory_initializer_range": 1.0, "bptt_segments": 4}
    of_memory |= seen if kind == "tokens" else {"mem_len": MEM_LEN, "num_sinks": 0}
    of_memory |= {name: value for name, value in fields.items() if name in own or not hasattr(LlamaConfig(), name)}
    of_base = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    of_base |= {name: value for name, value in fields.items() if name not in of_memory}
    return SegmentMemoryConfig(text_config=tiny_base_config(family, **of_base), **of_memory)


def in_turn(model_types: Iterable[str], cases: Iterable, each: int = 1) -> list[tuple]:
    """Rows `(model_type, *case)` for a mechanism that the variants share: those of `IN_EVERY_CASE` meet all cases, the
    others `each` of them, in turn, so that every variant and every case is met."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    chosen, turn = [], itertools.cycle(range(len(cases)))
    for model_type in model_types:
        all_cases = model_type in IN_EVERY_CASE or each >= len(cases)
        here = range(len(cases)) if all_cases else sorted(next(turn) for _ in range(each))
        chosen += [(model_type, *cases[index]) for index in here]
    return chosen


def pairwise(*axes: Sequence) -> list[tuple]:
    """Few combinations in which every two values of two axes meet: a fault that takes more than two is rare."""
    combinations = list(itertools.product(*axes))
    unmet = {pair for combination in combinations for pair in _pairs(axes, combination)}
    chosen = []
    while unmet:
        best = max(combinations, key=lambda combination: len(unmet & _pairs(axes, combination)))
        chosen.append(best)
        unmet -= _pairs(axes, best)
    return chosen


def _pairs(axes: Sequence[Sequence], combination: tuple) -> set[tuple]:
    places = [(axis, values.index(value)) for axis, (values, value) in enumerate(zip(axes, combination, strict=True))]
    return set(itertools.combinations(places, 2))


_BUILT: dict[str, tuple[CachedModule, torch.Tensor]] = {}


def tiny_model(model_type: str, head: str = "model", dtype: torch.dtype = torch.float64, **fields):
    """A model in eval mode; `head` is one of `model`, `causal_lm`, `sequence_classification`, `token_classification` and
    `masked_lm`.

    It is built once, and every caller gets a copy, with the random numbers where the build left them.
    """
    for name in ("initial_memory", "same_length"):  # tests over all variants name them
        if model_type in VARIANTS and lacks(model_type, name):
            fields.pop(name, None)
    key = repr((model_type, head, dtype, sorted(fields.items())))
    if key not in _BUILT:
        torch.manual_seed(0)
        model_class = getattr(MADE_OF[model_type], f"{head}_class")
        model = model_class(tiny_config(model_type, **fields)).to(dtype).eval()
        for module in model.modules():
            for name in ("inv_freq", "original_inv_freq"):
                if hasattr(module, name):
                    setattr(module, name, getattr(module, name).float())  # as `from_pretrained` leaves them
        _BUILT[key] = CachedModule(model), torch.get_rng_state()
    cached, random_state = _BUILT[key]
    torch.set_rng_state(random_state)
    return cached.copy()


def memory_value(model_type: str, batch: int = 2, length: int = MEM_LEN, width: int = 32, layers: int = 2) -> Memory:
    """The `mems` of rows that remember `length` vectors of zeros per layer, or none where a layer remembers nothing, beside
    the states of a fresh row with `initial_memory="zeros"`."""
    fields = {"hidden_size": width, "num_hidden_layers": layers}
    if ROWS[model_type].memory == "exact" and not lacks(model_type, "initial_memory"):
        fields |= {"initial_memory": "zeros"}
    like = torch.zeros(0, dtype=torch.float64)
    memory = tiny_model(model_type, **fields).new_memory(batch, like, static=True)
    memory = memory._replace(lengths=torch.full_like(memory.lengths, length))
    return memory._replace(layers=tuple(with_zeros(layer, length) for layer in memory.layers))


def with_zeros(layer: LayerMemory, length: int) -> LayerMemory:
    """The layer with `length` zeros in its window, if it has one."""
    if layer.num_columns == 0:
        return layer
    return layer._replace(columns=tuple(each[..., :1, :].repeat_interleave(length, -2) for each in layer.columns))


@functools.cache
def empty_memory(model_type: str) -> Memory:
    """What a row remembers that has read nothing, with all of its columns, without numbers."""
    with torch.device("meta"):
        model = ROWS[model_type].model_class(tiny_config(model_type))
    return model.new_memory(1, torch.empty(0, device="meta"), static=True)


def has_states(model_type: str) -> bool:
    """Whether the variant remembers more than windows."""
    memory = empty_memory(model_type)
    return bool(memory.state) or any(layer.state or layer.older for layer in memory.layers)


def reach_of_states(model) -> int:
    """How many positions further back than its attention a layer sees by the windows that it remembers as states."""
    convolutions = 2 * (getattr(model.config, "conv_kernel_size", 1) - 1)
    return convolutions + getattr(model.config, "num_local_rnns", 0) * (getattr(model.config, "local_window", 1) - 1)


def reach_of_ngrams(model) -> int:
    """How many positions further back the embedding of a token looks."""
    return max([1, *getattr(model.config, "ngram_orders", [])]) - 1


def keeps_blocks(model_type: str) -> bool:
    """Whether a layer keeps what has left its window until a block of it is whole, to be compressed, read by a state or
    written into a matrix."""
    fields = ("compression_rate", "num_states", "memory_update")
    return any(hasattr(tiny_config(model_type), name) for name in fields)


def num_remembered(model, read: int, length: int | None = None) -> int:
    """How many columns a window of `length` (the longest one) has behind `read` tokens of a text: what leaves it goes one
    by one, or in blocks where it is compressed."""
    if getattr(model.config, "kind", None) == "tokens":
        return read % model.config.segment_length  # of whole segments nothing stays but what they wrote
    if not any(model.config.layer_mem_lens):
        return 0  # a state alone
    if model.config.model_type in WITHOUT_OWN_KEYS:
        return min(read, model.config.mem_len - 1 if length is None else length)  # no token needs its own keys again
    if hasattr(model.config, "block_length"):  # a state is to read an open block
        return min(read, max(model.config.layer_mem_lens) if length is None else length)
    if model.config.model_type == "recurrent_memory_transformer":  # memory tokens are columns like others
        config, (whole, rest) = model.config, divmod(read, model.config.segment_length)
        mem_len = MEM_LEN if length is None else length + 1 - config.positions_per_segment
        opened = rest + config.num_memory_tokens if rest else 0
        return min(mem_len, whole * config.positions_per_segment) + opened
    if model.config.model_type == "infini_transformer":
        return read % (MEM_LEN if length is None else length + 1)  # of whole blocks nothing stays
    rate = getattr(model.config, "compression_rate", 1)
    length = MEM_LEN + rate - 1 if length is None else length
    return read - max(read - (length - rate + 1), 0) // rate * rate


def types_of_memory(model, dtype: torch.dtype) -> set[torch.dtype]:
    """Those of what a model of this type remembers: sums over a text keep float32."""
    return {dtype, torch.float32} if hasattr(model.config, "memory_update") else {dtype}


def tensors_of(memory: Memory) -> list[torch.Tensor]:
    """All of them, counts too."""
    return list(memory.named_tensors().values())


def assert_same_memory(ours: Memory, expected: Memory) -> None:
    """Rows remember the same; one of the two may have more unused columns on the left, whose values say nothing."""
    for name in ("lengths", "tokens_read"):
        assert getattr(ours, name).tolist() == getattr(expected, name).tolist()
    torch.testing.assert_close(ours.state, expected.state, **EXACT)
    for layer, other in zip(ours.layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.state, other.state, **EXACT)
        assert _sizes(layer) == _sizes(other)
        for row, count in enumerate(ours.lengths.tolist()):
            count = min(count, max(layer.num_columns, other.num_columns))
            for pair in zip(layer.columns, other.columns, strict=True):
                torch.testing.assert_close(*(newest(each[row], count) for each in pair), **EXACT)
        for pair in zip(layer.older, other.older, strict=True):
            torch.testing.assert_close(*(newest(each, min(one.shape[-2] for one in pair)) for each in pair), **EXACT)


def newest(columns: torch.Tensor, count: int) -> torch.Tensor:
    """The newest `count` columns of `(.., columns, width)`."""
    return columns[..., columns.shape[-2] - count :, :]


@functools.cache
def follows_same_length(model_type: str) -> bool:
    """Whether `same_length` and `mem_len` alone say how far a token sees; some papers have a window of their own."""
    if not allows(model_type, same_length=False):
        return False
    windows = [tiny_config(model_type, same_length=same_length).sliding_window for same_length in (True, False)]
    return windows == [MEM_LEN, MEM_LEN + 1]


def allows(model_type: str, **field) -> bool:
    """Whether the variant takes this value of a field; what it refuses it refuses by name."""
    try:
        tiny_config(model_type, **field)
    except ValueError as error:
        if not any(name in str(error) for name in field):
            raise
        return False
    return True


@functools.cache
def layers_to_compile(model_type: str) -> int:
    """One layer is traced as the next one; two where the paper is about depth, or needs them."""
    about_depth = model_type in ("universal_transformer", "depth_adaptive_transformer")
    return 1 if not about_depth and allows(model_type, num_hidden_layers=1) else 2


@functools.cache
def norm_positions(model_type: str) -> list[str]:
    return [position for position in ("pre", "post") if allows(model_type, norm_position=position)]


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Token ids from 3 on: 0, 1 and 2 stay free for padding, begin and end."""
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))


def result_of(output) -> torch.Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def said_by(output) -> list[torch.Tensor]:
    """All results of a call that have a gradient: what it remembers has none."""
    return [value for value in output.values() if isinstance(value, torch.Tensor) and value.requires_grad]


def held_by(cache) -> list[torch.Tensor]:
    """The tensors of numbers that a cache holds, which have a row per batch element: keys and values, and states."""
    return [rows for rows in tensors_of(cache.memory) if rows.is_floating_point()]


def memory_if_any(model_type: str, output) -> dict:
    """That of an output, where the variant remembers something."""
    return {} if ROWS[model_type].memory == "none" else memory_of(output)


def right_padded() -> torch.Tensor:
    """The mask of two rows of ten columns, of which the second has four tokens."""
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 4:] = 0
    return mask


def memory_of(output) -> dict:
    """What carries the memory of an output into the next call."""
    if output.past_key_values is not None:
        return {"past_key_values": output.past_key_values}
    return {"mems": output.mems}


def read(
    model,
    input_ids: torch.Tensor,
    lengths: Iterable[int],
    use_cache: bool | None = None,
    attention_mask: torch.Tensor | None = None,
    reset: torch.Tensor | None = None,
    memory: dict | None = None,
) -> tuple[torch.Tensor, dict]:
    """Read `(batch, length)` ids in segments of `lengths`; the results of all of them, and the memory after the last."""
    results, memory, start = [], memory or {}, 0
    for length in lengths:
        here = slice(start, start + length)
        output = model(
            input_ids[:, here],
            attention_mask=None if attention_mask is None else attention_mask[:, here],
            reset=None if reset is None else reset[:, here],
            use_cache=use_cache,
            **memory,
        )
        results.append(result_of(output))
        memory, start = memory_of(output), start + length
    return torch.cat(results, dim=1), memory


def read_row_alone(
    model,
    input_ids: torch.Tensor,
    lengths: Iterable[int],
    attention_mask: torch.Tensor | None = None,
    reset: torch.Tensor | None = None,
    memory: dict | None = None,
) -> torch.Tensor:
    """Results of one row's real tokens, `(tokens, width)`: read without padding, every document from an empty memory.

    A call ends where the segment ends or a document begins, which it may do at a pad.
    """
    length = len(input_ids)
    real = [True] * length if attention_mask is None else attention_mask.tolist()
    begins = [False] * length if reset is None else reset.tolist()
    ends = set(itertools.accumulate(lengths))
    results, memory, pending = [], memory or {}, []
    for position in range(length):
        memory = {} if begins[position] else memory  # nothing is pending here
        pending += [position] if real[position] else []
        is_last = position + 1 in ends or begins[position + 1]
        if is_last and pending:
            output = model(input_ids[None, pending], **memory)
            results.append(result_of(output)[0])
            memory, pending = memory_of(output), []
    return torch.cat(results)
