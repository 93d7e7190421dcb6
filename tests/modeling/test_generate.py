"""`generate()` with memory, for every language model of the table, against loops that read the whole text again."""

import pytest
import torch
from by_hand import PAD, greedy, language_model, log_probability, new_tokens, text_by_hand, text_by_hand_with_mems
from tiny import (
    EXACT,
    FEW_MEMORIES,
    MEM_LEN,
    ROWS,
    VOCAB_SIZE,
    allows,
    in_turn,
    layers_to_compile,
    memory_of,
    models,
    one_of_each_kind,
    one_of_each_memory,
    pairwise,
    tokens,
)
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import CompileConfig, DynamicCache, PreTrainedTokenizerFast, TextIteratorStreamer, pipeline
from transformers.generation import BaseStreamer

from transformers_xl.modeling import generation_memory

EVERY_CARRYING = models(causal=True, causal_lm=True, memory=("exact", "own"))
FEW = [each for each in EVERY_CARRYING if each in FEW_MEMORIES]
few = pytest.mark.parametrize("model_type", FEW)
EVERY_WINDOWED = models(causal=True, causal_lm=True, memory=("exact",))
WINDOWED = one_of_each_kind(EVERY_WINDOWED)
FEW_WINDOWED = [each for each in EVERY_WINDOWED if each in FEW_MEMORIES]
CROPPABLE = one_of_each_kind(models(causal=True, causal_lm=True, memory=("exact",), croppable=True))
croppable = pytest.mark.parametrize("model_type", CROPPABLE)
# what every attention computes in a step of static memory is said by tests/uses/test_export.py
STATIC = one_of_each_memory(each for each in EVERY_WINDOWED if ROWS[each].causal_lm_class._can_compile_fullgraph)
COMPILED = ("transformer_xl", "causal_longformer")  # one window, and windows of unequal length
LENGTHS = [1, MEM_LEN, 5 * MEM_LEN]  # below, at and far past the window; what is generated passes it in every case


# --- ways of decoding


@pytest.mark.parametrize(("model_type", "length"), in_turn(EVERY_WINDOWED, LENGTHS))
def test_greedy_is_a_loop_of_full_forwards(model_type, length):
    model, ids = language_model(model_type), tokens(2, length)
    assert torch.equal(greedy(model, ids), text_by_hand(model, ids))


@pytest.mark.parametrize(
    ("model_type", "length", "initial_memory", "same_length"),
    in_turn(EVERY_CARRYING, pairwise(LENGTHS, ["empty", "zeros"], [True, False])),
)
def test_greedy_is_the_prompt_in_one_call_and_then_token_by_token(model_type, same_length, initial_memory, length):
    model = language_model(model_type, same_length=same_length, initial_memory=initial_memory)
    ids = tokens(2, length)
    assert torch.equal(greedy(model, ids), text_by_hand_with_mems(model, ids))


@pytest.mark.parametrize("model_type", [each for each in FEW_WINDOWED if allows(each, mem_len=0, same_length=False)])
def test_model_without_memory_reads_the_text_again(model_type):
    model, ids = language_model(model_type, mem_len=0, same_length=False), tokens(2, 5)
    result = greedy(model, ids, return_dict_in_generate=True)
    assert torch.equal(result.sequences, text_by_hand(model, ids))
    assert result.mems is None


DECODINGS = [
    (1, {"do_sample": False}),
    (5 * MEM_LEN, {"do_sample": True, "top_k": 0}),
    (1, {"do_sample": True, "top_p": 0.8, "num_return_sequences": 3}),
    (MEM_LEN, {"do_sample": False, "num_beams": 4, "num_return_sequences": 2}),
    (5 * MEM_LEN, {"do_sample": True, "num_beams": 3, "top_k": 0}),
]


@pytest.mark.parametrize(("model_type", "length", "decoding"), in_turn(WINDOWED, DECODINGS), ids=str)
def test_cached_is_uncached(model_type, decoding, length):
    model, ids = language_model(model_type), tokens(2, length)
    results = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        result = model.generate(
            ids, max_new_tokens=10, use_cache=use_cache, output_logits=True, return_dict_in_generate=True, **decoding
        )
        results.append((result.sequences, torch.stack(result.logits)))
    torch.testing.assert_close(results[0], results[1], **EXACT)
    assert len(results[0][0]) == 2 * decoding.get("num_return_sequences", 1)


@pytest.mark.parametrize(("model_type", "length"), in_turn(WINDOWED, LENGTHS))
def test_beams_reorder_the_memory(model_type, length):
    """The score of every returned beam is what one forward over its whole text gives it."""
    model, ids = language_model(model_type), tokens(2, length)
    result = model.generate(
        ids, max_new_tokens=10, do_sample=False, num_beams=5, num_return_sequences=3, length_penalty=1.0,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    assert result.sequences.shape == (6, length + 10)
    expected = log_probability(model, result.sequences, length) / 10
    torch.testing.assert_close(result.sequences_scores.double(), expected, atol=1e-5, rtol=1e-5)
    best = log_probability(model, result.sequences[::3], length)
    # over all rows: a greedy text may fall out of the beams of its own
    assert best.sum() >= log_probability(model, greedy(model, ids), length).sum() - 1e-9


@pytest.mark.parametrize(("model_type", "length"), in_turn(FEW_WINDOWED, LENGTHS))
def test_prefill_in_chunks(model_type, length):
    model, ids = language_model(model_type), tokens(2, length)
    expected = text_by_hand(model, ids, new=6)
    for chunk in (1, 3, MEM_LEN, 100):
        assert torch.equal(greedy(model, ids, new=6, prefill_chunk_size=chunk), expected)


@pytest.mark.parametrize(("model_type", "chunk"), in_turn(FEW_WINDOWED, [1, 3, MEM_LEN]))
def test_prefill_in_chunks_with_padding_and_memory(model_type, chunk):
    model = language_model(model_type)
    ids, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, :7] = 0
    start = {"attention_mask": mask, **memory_of(model(tokens(2, 10, seed=1)))}
    assert torch.equal(greedy(model, ids, prefill_chunk_size=chunk, **start), greedy(model, ids, **start))


def lengths_read(model) -> list[int]:
    """The lengths of the calls that follow, as they come."""
    lengths: list[int] = []

    def note(module, args, kwargs) -> None:
        ids = args[0] if args else kwargs.get("input_ids")
        given = kwargs["inputs_embeds"] if ids is None else ids
        lengths.append(given.shape[1])

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    return lengths


def assert_read_in_pieces(model, ids: torch.Tensor, monkeypatch, **settings) -> None:
    """The text is that of a prompt read at once, and no call reads more than a piece."""
    settings |= {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    prompt = {"inputs_embeds" if ids.is_floating_point() else "input_ids": ids}
    expected = model.generate(**prompt, **settings)
    monkeypatch.setattr(generation_memory, "PREFILL_CHUNK", 5)
    lengths = lengths_read(model)
    result = model.generate(**prompt, **settings)
    assert torch.equal(result.sequences, expected.sequences)
    assert max(lengths) == 5
    following = tokens(len(result.sequences), 3, seed=2)
    if "num_beams" not in settings or settings["num_beams"] == 1:
        rest, whole = (model(following, mems=each.mems).logits for each in (result, expected))
        torch.testing.assert_close(rest, whole, **EXACT)


@pytest.mark.parametrize(("model_type", "way"), in_turn(FEW_WINDOWED, ["plain", "beams", "padded", "memory"]))
def test_a_long_prompt_is_read_in_pieces(model_type, way, monkeypatch):
    model = language_model(model_type)
    settings = {
        "plain": {},
        "beams": {"num_beams": 3},
        "padded": {"attention_mask": torch.tensor([[1] * 23, [0] * 9 + [1] * 14])},
        "memory": {"mems": model(tokens(2, 10, seed=1)).mems},
    }
    assert_read_in_pieces(model, tokens(2, 23), monkeypatch, **settings[way])


@croppable
def test_a_long_prompt_is_read_in_pieces_with_an_assistant(model_type, monkeypatch):
    model = language_model(model_type)
    assistant = language_model(model_type, num_hidden_layers=1)
    assistant.generation_config.num_assistant_tokens = 3
    assert_read_in_pieces(model, tokens(1, 23), monkeypatch, assistant_model=assistant)


def test_a_long_prompt_is_read_in_pieces_into_a_static_cache(monkeypatch):
    model = language_model("transformer_xl")
    assert_read_in_pieces(model, tokens(2, 23), monkeypatch, cache_implementation="static", disable_compile=True)


@pytest.mark.parametrize("beams", [1, 3])
def test_embeddings_of_a_long_prompt_are_read_in_pieces(beams, monkeypatch):
    model = language_model("transformer_xl")
    assert_read_in_pieces(model, model.get_input_embeddings()(tokens(2, 23)), monkeypatch, num_beams=beams)


@pytest.mark.parametrize("settings", [{"prefill_chunk_size": 4}, {"use_cache": False}], ids=str)
def test_the_caller_may_say_how_a_prompt_is_read(settings, monkeypatch):
    monkeypatch.setattr(generation_memory, "PREFILL_CHUNK", 5)
    model = language_model("transformer_xl")
    lengths = lengths_read(model)
    greedy(model, tokens(1, 23), new=1, **settings)
    assert max(lengths) == settings.get("prefill_chunk_size", 23)


def test_what_is_shown_of_a_prompt_is_whole(monkeypatch):
    monkeypatch.setattr(generation_memory, "PREFILL_CHUNK", 5)
    model = language_model("transformer_xl")
    result = greedy(model, tokens(1, 23), new=1, output_hidden_states=True, return_dict_in_generate=True)
    assert result.hidden_states[0][0].shape[1] == 23


@pytest.mark.parametrize(("model_type", "length"), in_turn(CROPPABLE, [1, 5 * MEM_LEN]))
def test_assisted_is_greedy(model_type, length):
    model, ids = language_model(model_type), tokens(1, length)
    other = language_model(model_type, num_hidden_layers=1, mem_len=5)
    expected = greedy(model, ids)
    for assistant in (other, model):  # one that is mostly wrong, and one that is always right
        assert torch.equal(greedy(model, ids, assistant_model=assistant), expected)


@pytest.mark.parametrize(("model_type", "length"), in_turn(CROPPABLE, LENGTHS))
def test_prompt_lookup_is_greedy(model_type, length):
    """With random text, and with repeated text, of which the looked up tokens are taken more often."""
    model = language_model(model_type)
    for ids in (tokens(1, length), tokens(1, 3).repeat(1, length)):
        assert torch.equal(greedy(model, ids, new=16, prompt_lookup_num_tokens=4), greedy(model, ids, new=16))


@few
def test_assisted_decoding_needs_a_memory_that_can_be_taken_back(model_type):
    model = language_model(model_type)
    assert model._is_stateful != ROWS[model_type].croppable
    if model._is_stateful:
        with pytest.raises(ValueError, match="stateful"):
            greedy(model, tokens(1, 5), prompt_lookup_num_tokens=4)
        with pytest.raises(ValueError, match="taken back"):
            greedy(language_model("transformer_xl"), tokens(1, 5), assistant_model=model)
        with pytest.raises(ValueError, match="taken back"):
            model(tokens(1, 5), use_cache=True).past_key_values.crop(-1)
    with pytest.raises(ValueError, match="(?i)static|stateful"):
        greedy(model, tokens(1, 5), prompt_lookup_num_tokens=4, cache_implementation="static")


@croppable
def test_assisted_decoding_goes_on_from_padded_memory(model_type):
    """What is taken back is taken from the lengths too, where a row has unused columns."""
    model, ids = language_model(model_type, mem_len=32), tokens(1, 3)
    memory = memory_of(model(tokens(1, 10, seed=1), attention_mask=torch.tensor([[0] * 6 + [1] * 4])))
    assert memory["mems"].lengths.tolist() == [4]
    assistant = language_model(model_type, num_hidden_layers=1, mem_len=32)  # mostly wrong
    expected = greedy(model, ids, **memory)
    assert torch.equal(greedy(model, ids, assistant_model=assistant, **memory), expected)


@croppable
def test_assisted_decoding_goes_on_from_memory(model_type):
    model = language_model(model_type)
    mems = model(tokens(1, 10, seed=1)).mems
    ids = tokens(1, 4).repeat(1, 3)
    expected = greedy(model, ids, new=30, mems=mems)
    assert torch.equal(greedy(model, ids, new=30, mems=mems, prompt_lookup_num_tokens=4), expected)
    result = greedy(model, ids, new=15, mems=mems, prompt_lookup_num_tokens=4, return_dict_in_generate=True)
    assert torch.equal(result.sequences, expected[:, : 12 + 15])
    again = greedy(model, result.sequences[:, -1:], new=15, mems=result.mems)
    assert torch.equal(again[:, 1:], expected[:, 12 + 15 :])


@pytest.mark.parametrize(("model_type", "length"), in_turn(STATIC, LENGTHS))
def test_static_cache_is_dynamic_cache(model_type, length):
    model, ids = language_model(model_type), tokens(2, length)
    mask = torch.ones_like(ids)
    mask[1, : length // 2] = 0
    memories = [
        memory_of(model(tokens(2, before, seed=1))) for before in (3, 10)
    ]  # shorter than the window, and longer
    for arguments in ({}, {"attention_mask": mask}, *memories):
        static = greedy(model, ids, cache_implementation="static", **arguments)
        assert torch.equal(static, greedy(model, ids, **arguments))


@pytest.mark.parametrize("model_type", COMPILED)
def test_static_generation_compiles_once(model_type):
    """All tokens go through one graph, whatever the text and how much was generated before."""
    model = language_model(model_type, num_hidden_layers=layers_to_compile(model_type))
    mems = model(tokens(1, 20)).mems
    compile_config = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    compile_config._compile_all_devices = True  # transformers compiles on accelerators only, unless it is told
    options = {"cache_implementation": "static", "compile_config": compile_config, "mems": mems}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for length, new in ((1, 12), (3, 9)):
        ids = tokens(1, length, seed=length)
        assert torch.equal(greedy(model, ids, new=new, **options), greedy(model, ids, new=new, mems=mems))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@few
def test_embeddings_as_prompt(model_type):
    model, ids = language_model(model_type), tokens(2, 5)
    embeds = model.get_input_embeddings()(ids).detach()
    expected = new_tokens(greedy(model, ids), ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=10, do_sample=False), expected)
    both = model.generate(ids, inputs_embeds=embeds, max_new_tokens=10, do_sample=False)
    assert torch.equal(new_tokens(both, ids), expected)


# --- streamers and pipelines


class Collecting(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


@pytest.fixture(scope="module")
def tokenizer():
    """One word per id, so that the tiny vocabulary has a text."""
    words = {"<pad>" if index == PAD else f"w{index}": index for index in range(VOCAB_SIZE)}
    backend = Tokenizer(tokenizer_models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", padding_side="left")


@few
def test_streamer_gets_every_token(model_type, tokenizer):
    model, ids = language_model(model_type), tokens(1, 5)
    streamer = Collecting()
    sequences = greedy(model, ids, streamer=streamer)
    assert streamer.tokens == sequences[0].tolist()
    assert streamer.ended
    iterator = TextIteratorStreamer(tokenizer, skip_prompt=True)
    greedy(model, ids, streamer=iterator)
    assert "".join(iterator).split() == tokenizer.decode(new_tokens(sequences, ids)[0]).split()


@pytest.mark.parametrize("model_type", FEW)  # every variant: tests/uses/test_pipelines.py
def test_pipeline(model_type, tokenizer):
    model = language_model(model_type)
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = ["w5 w6 w7", "w9", "w4 w8 w15 w16 w23"]
    settings = {"max_new_tokens": 9, "do_sample": False, "return_full_text": False}
    for answers in (generator(texts, **settings), generator(texts, batch_size=3, **settings)):
        for text, [answer] in zip(texts, answers, strict=True):
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            expected = new_tokens(greedy(model, ids, new=9), ids)[0]
            assert answer["generated_text"].split() == tokenizer.decode(expected).split()

    mems = model(tokens(1, 10, seed=1)).mems
    ids = torch.tensor([tokenizer(texts[0])["input_ids"]])
    [answer] = generator(texts[0], mems=mems, return_dict_in_generate=True, **settings)
    assert (
        answer["generated_text"].split()
        == tokenizer.decode(new_tokens(greedy(model, ids, new=9, mems=mems), ids)[0]).split()
    )
    assert set(answer) == {"generated_text"}


# --- what cannot work


@few
def test_other_caches_are_refused(model_type):
    model = language_model(model_type)
    for kind in ("paged", "quantized", "offloaded", "offloaded_static", "sliding_window"):
        model.generation_config.cache_implementation = None
        with pytest.raises(ValueError, match=rf"`cache_implementation`='{kind}'"):
            greedy(model, tokens(1, 5), cache_implementation=kind)
        model.generation_config.cache_implementation = kind
        with pytest.raises(ValueError, match=rf"`cache_implementation`='{kind}'"):
            greedy(model, tokens(1, 5))


@few
def test_arguments_that_cannot_be_meant_are_refused(model_type):
    model, ids = language_model(model_type), tokens(2, 5)
    output = model(ids)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values"):
        greedy(model, ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="`mems` and `past_key_values`"):
        greedy(model, ids, mems=output.mems, past_key_values=cache)
    for mems in (model(tokens(3, 5)).mems, model(tokens(3, 5), use_cache=True).mems):
        with pytest.raises(ValueError, match="mems"):
            greedy(model, ids, mems=mems)
    with pytest.raises(ValueError, match="mems"):
        greedy(model, ids, mems=output.mems[:1])
    with pytest.raises(ValueError, match="`mems` is a MemoryCache"):
        greedy(model, ids, mems=cache)
    for reset in (torch.ones(2, 5) > 0, torch.ones(2), torch.tensor([1, 0]), torch.ones(3) > 0, [True, False]):
        with pytest.raises(ValueError, match="`reset`"):
            greedy(model, ids, mems=output.mems, reset=reset)
    with pytest.raises(ValueError, match=r"`generate\(\)`"):
        model.generate_batch([[5, 6, 7]])
