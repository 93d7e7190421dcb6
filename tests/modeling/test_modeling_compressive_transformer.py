"""What the Compressive Transformer adds: old memories are compressed, seen further back, and learn to be of use."""

from pathlib import Path

import by_hand
import pytest
import torch
from naive_compressive_transformer import Naive
from tiny import EXACT, assert_same_memory, memory_of, pairwise, read, read_row_alone, tiny_model, tokens
from trained import arguments

from transformers_xl import CompressiveTransformerConfig, MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling import modeling_compressive_transformer
from transformers_xl.modeling.layers import attention
from transformers_xl.modeling.layers.compression import CompressionPlan

MODEL = "compressive_transformer"
RATE, FAR, MEM_LEN = 3, 2, 5
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
CUTS = [4, 1, 9, 7, 1, 8]


def language_model(**fields):
    """Blocks of three, of which two are kept, behind a window of five."""
    defaults = {"compression_rate": RATE, "compressed_mem_len": FAR, "mem_len": MEM_LEN}
    return tiny_model(MODEL, "causal_lm", **(defaults | fields))


def read_by_hand(model, input_ids: torch.Tensor, cuts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits `(batch, length, vocab)` and the reconstruction loss of each call, each row on its own."""
    state = dict(model.named_parameters()) | {"lm_head.weight": model.lm_head.weight}
    logits, losses = [], []
    for row in input_ids:
        naive = Naive(state, model.config)
        parts = [naive.read(ids) for ids in row.split(cuts)]
        logits.append(torch.cat([part for part, _ in parts]))
        losses.append(torch.stack([loss for _, loss in parts]))
    return torch.stack(logits), torch.stack(losses).mean(0)


FORMS = pairwise(["conv", "mean", "max"], [True, False], ["empty", "zeros"], ["pre", "post"])
forms = pytest.mark.parametrize(("compression_function", "same_length", "initial_memory", "norm_position"), FORMS)


@forms
def test_values_and_gradients_are_those_of_the_equations(
    compression_function, same_length, initial_memory, norm_position
):
    model = language_model(
        compression_function=compression_function,
        same_length=same_length,
        initial_memory=initial_memory,
        norm_position=norm_position,
    ).train()
    ids = tokens(2, sum(CUTS))
    logits, losses, mems = [], [], None
    for part in ids.split(CUTS, dim=1):
        output = model(part, mems=mems)
        mems = output.mems
        logits.append(output.logits)
        losses.append(output.compression_loss.mean())
    logits, losses = torch.cat(logits, dim=1), torch.stack(losses)
    expected, expected_losses = read_by_hand(model, ids, CUTS)
    torch.testing.assert_close(logits, expected, **EXACT)
    torch.testing.assert_close(losses, expected_losses, **EXACT)
    assert (losses > 0).sum() >= 3

    weight = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(1))
    parameters = dict(model.named_parameters())
    for ours, naive in (((logits * weight).sum(), (expected * weight).sum()), (losses.sum(), expected_losses.sum())):
        if not ours.requires_grad:  # the loss of what learns nothing
            assert compression_function != "conv"
            continue
        found, wanted = (
            dict(zip(parameters, torch.autograd.grad(loss, parameters.values(), allow_unused=True), strict=True))
            for loss in (ours, naive)
        )
        for name, gradient in wanted.items():
            nothing = torch.zeros_like(parameters[name])
            pair = (nothing if each is None else each for each in (found[name], gradient))
            torch.testing.assert_close(*pair, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_the_convolution_learns_from_reconstruction_alone():
    model = language_model().train()
    ids = tokens(2, 24)
    output = model(ids, labels=ids)
    without = model(ids).logits.sum()
    without.backward()
    assert all(layer.compression.conv.weight.grad is None for layer in model.model.layers)
    model.zero_grad()
    output.compression_loss.sum().backward()
    learning = {name for name, each in model.named_parameters() if each.grad is not None and each.grad.any()}
    assert learning == {f"model.layers.{i}.compression.conv.{name}" for i in (0, 1) for name in ("weight", "bias")}


def test_the_loss_of_training_is_that_of_targets_and_of_reconstruction():
    model, ids = language_model(reconstruction_loss_coef=0.5), tokens(2, 24)
    plain = model(ids, shift_labels=ids).loss
    assert model(ids).compression_loss is None
    output = model.train()(ids, shift_labels=ids)
    torch.testing.assert_close(output.loss, plain + 0.5 * output.compression_loss.mean(), **EXACT)
    nothing = model(ids[:, :MEM_LEN], shift_labels=ids[:, :MEM_LEN])  # nothing has left the window
    assert not nothing.compression_loss.any()
    nothing.loss.backward()  # processes that train together want a gradient of every weight in every step
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- how far a token reaches


def is_moved(model, position: int, length: int, use_cache: bool | None) -> bool:
    """Whether the token at `position` changes what the last of `length` becomes, read in two calls."""
    ids = tokens(1, length)
    changed = ids.clone()
    changed[0, position] = (ids[0, position] + 1) % 37
    here, there = (read(model, each, [length - 1, 1], use_cache=use_cache)[0][0, -1] for each in (ids, changed))
    return not torch.allclose(here, there, atol=1e-12)


@use_cache
@pytest.mark.parametrize("length", [20, 21, 22])
def test_the_horizon(length, use_cache):
    """One layer: the window, then what no block holds yet, then the blocks that are kept; and nothing behind them."""
    model = language_model(num_hidden_layers=1)
    done = (length - MEM_LEN) // RATE * RATE
    seen = {*range(length - MEM_LEN, length), *range(done - FAR * RATE, done)}
    assert {position for position in range(length) if is_moved(model, position, length, use_cache)} == seen
    if done == length - MEM_LEN:
        assert length - min(seen) == model.config.sliding_window


@use_cache
def test_without_same_length_a_call_sees_what_it_began_with(use_cache):
    model = language_model(num_hidden_layers=1, same_length=False)
    done = (20 - 1 - MEM_LEN) // RATE * RATE
    assert {position for position in range(20) if is_moved(model, position, 20, use_cache)} == {
        *range(done - FAR * RATE, 20)
    }


# --- cuts, padding, documents


LONG = 40  # far past all that is remembered


@use_cache
@pytest.mark.parametrize("initial_memory", ["empty", "zeros"])
@pytest.mark.parametrize("lengths", [(1,) * LONG, (7, 1, 1, 20, 3, 8), (39, 1), (2,) * 20])
def test_every_cut_reads_the_same(lengths, initial_memory, use_cache):
    model, ids = language_model(initial_memory=initial_memory), tokens(2, LONG)
    torch.testing.assert_close(read(model, ids, lengths, use_cache=use_cache)[0], model(ids).logits, **EXACT)


@torch.no_grad()
def test_one_token_is_read_in_one_piece_as_in_plain_steps():
    """Also right behind padding, where rows have compressed unequally much, and with weights of the other attention."""
    for fields in ({}, {"same_length": False}, {"initial_memory": "zeros"}, {"mem_len": 1}, {"compression_rate": 1}):
        model, ids = language_model(**fields), tokens(3, LONG)
        mask = torch.ones(3, LONG, dtype=torch.bool)
        mask[1, 3:9] = mask[2, :4] = False
        for attention_mask in (None, mask):
            results = []
            for kind in ("eager", "sdpa"):
                model.set_attn_implementation(kind)
                lengths = [10] + [1] * 30
                results.append(read(model, ids, lengths, use_cache=True, attention_mask=attention_mask)[0])
            torch.testing.assert_close(*results, **EXACT)


@use_cache
@pytest.mark.parametrize("same_length", [True, False])
@pytest.mark.parametrize("side", ["left", "right", "interior"])
def test_padding_on_any_side_and_documents_inside(side, same_length, use_cache):
    model, ids = language_model(same_length=same_length), tokens(3, LONG)
    lengths = [9, 14, 1, 16]
    mask, reset = torch.ones(3, LONG, dtype=torch.bool), torch.zeros(3, LONG, dtype=torch.bool)
    reset[0, 30] = reset[1, 12] = reset[1, 20] = reset[2, 25] = True
    starts = [0, 9, 23, 24]
    for start, length, count in zip(starts, lengths, (4, 6, 0, 5), strict=True):
        columns = {
            "left": slice(start, start + count),
            "right": slice(start + length - count, start + length),
            "interior": slice(start + 2, start + 2 + count),
        }[side]
        mask[2, columns] = False
        mask[1, columns] = count % 2 == 0
    results, _ = read(model, ids, lengths, use_cache=use_cache, attention_mask=mask, reset=reset)
    for row in range(3):
        alone = read_row_alone(model, ids[row], lengths, mask[row], reset[row])
        torch.testing.assert_close(results[row, mask[row]], alone, **EXACT)


@use_cache
@pytest.mark.parametrize("initial_memory", ["empty", "zeros"])
def test_a_reset_row_is_a_fresh_row(initial_memory, use_cache):
    model, ids = language_model(initial_memory=initial_memory), tokens(3, LONG)
    memory = read(model, ids[:, :22], [22], use_cache=use_cache)[1]
    reset = torch.tensor([False, True, False])
    parts = [model(ids[:, 22:31], reset=reset, use_cache=use_cache, **memory)]
    parts.append(model(ids[:, 31:], use_cache=use_cache, **memory_of(parts[0])))
    results = torch.cat([part.logits for part in parts], dim=1)
    whole = model(ids).logits
    torch.testing.assert_close(results[1], model(ids[1:2, 22:]).logits[0], **EXACT)
    torch.testing.assert_close(results[[0, 2]], whole[[0, 2], 22:], **EXACT)


def test_the_reconstruction_loss_of_a_token_is_that_of_its_document():
    """Padding has none; what other documents of the row compress does not count."""
    model = language_model().train()
    ids, mask = tokens(2, 30), torch.ones(2, 30, dtype=torch.bool)
    mask[1, :5] = False
    reset = torch.zeros(2, 30, dtype=torch.bool)
    reset[0, 10] = reset[0, 14] = True
    loss = model(ids, attention_mask=mask, reset=reset).compression_loss
    assert loss.shape == (2, 30)
    assert not loss[~mask].any()
    for row, first, end in ((0, 0, 10), (0, 10, 14), (0, 14, 30), (1, 5, 30)):
        alone = model(ids[row : row + 1, first:end]).compression_loss[0]
        torch.testing.assert_close(loss[row, first:end], alone, **EXACT)
        assert alone.any() == (end - first > MEM_LEN + RATE)


# --- another length


@use_cache
def test_a_shorter_window_compresses_what_it_no_longer_holds(use_cache):
    """Nothing is lost: what left the window at once is compressed at once, as if it had left token by token."""
    model, ids = language_model(mem_len=11, num_hidden_layers=1), tokens(2, 30)
    memory = {"mems": model(ids[:, :20]).mems}
    model.resize_memory(MEM_LEN)
    results = read(model, ids[:, 20:], [4, 6], use_cache=use_cache, memory=memory)[0]
    torch.testing.assert_close(results, model(ids).logits[:, 20:], **EXACT)  # one layer's inputs know no window


@use_cache
def test_a_longer_window_follows_directly_what_was_compressed(use_cache):
    model, ids = language_model(num_hidden_layers=1), tokens(2, 50)
    memory = {"mems": model(ids[:, :20]).mems}
    model.resize_memory(9)
    results = read(model, ids[:, 20:], [1, 14, 15], use_cache=use_cache, memory=memory)[0]
    assert results.isfinite().all()
    # where the window and the blocks are full again
    torch.testing.assert_close(results[:, -1], model(ids).logits[:, -1], **EXACT)
    distance = []
    model.model.layers[0].self_attn.register_forward_hook(
        lambda module, args, kwargs, output: distance.append(kwargs["far"].distance[0].tolist()),
        with_kwargs=True,
    )
    model(ids[:, 20:22], **memory)
    assert distance == [[[7, 6], [8, 7]]]  # five to seven positions were kept: here those of distance 0 .. 5


# --- generation, training, saving


def test_beams_are_rescored():
    model, prompt = by_hand.language_model(MODEL, compression_rate=RATE, compressed_mem_len=FAR), tokens(2, 30)
    result = model.generate(
        prompt, max_new_tokens=20, num_beams=3, do_sample=False, return_dict_in_generate=True, output_scores=True,
        length_penalty=1.0,
    )  # fmt: skip
    scores = by_hand.log_probability(model, result.sequences, 30)
    torch.testing.assert_close(result.sequences_scores.double(), scores / 20, atol=1e-5, rtol=1e-5)
    assert result.mems is None


def test_generation_goes_on_from_mems():
    model, ids = by_hand.language_model(MODEL), tokens(2, 30)
    whole = by_hand.greedy(model, ids, new=25)
    first = by_hand.greedy(model, ids, new=12, return_dict_in_generate=True)
    for mems in (first.mems, model(first.sequences[:, :-1]).mems):
        after = by_hand.greedy(model, first.sequences[:, -1:], new=13, mems=mems)
        assert torch.equal(after[:, 1:], whole[:, 42:])


def trainer(folder: Path, **fields) -> MemoryTrainer:
    model = tiny_model(MODEL, "causal_lm", torch.float32, dropout=0.1).train()
    stream = TextStream(tokens(1, 3 * 8 * 6 + 1)[0].numpy(), 6, lanes=3)
    args = arguments(folder, use_cpu=True, max_steps=8, save_steps=5, optim="adamw_torch", **fields)
    return MemoryTrainer(model, args, train_dataset=stream)


def test_trained_and_resumed_bit_for_bit(tmp_path: Path):
    whole = trainer(tmp_path / "whole", save_strategy="steps")
    conv = whole.model.model.layers[0].compression.conv.weight.detach().clone()
    whole.train()
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name
    ours, theirs = (each.memory["train"].named_tensors() for each in (whole, resumed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)
    assert not torch.equal(whole.model.model.layers[0].compression.conv.weight, conv)
    logged = [[row["loss"] for row in each.state.log_history if "loss" in row] for each in (whole, resumed)]
    assert logged[0] == logged[1]


@pytest.mark.parametrize("compression_function", ["conv", "max"])
def test_saved_and_loaded_it_reads_the_same(tmp_path: Path, compression_function):
    model = language_model(compression_function=compression_function).float()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    ids = tokens(2, 30)
    assert torch.equal(read(loaded, ids, [12, 18])[0], read(model, ids, [12, 18])[0])


@use_cache
def test_bfloat16_stays_bfloat16(use_cache):
    model, ids = language_model(), tokens(2, LONG)
    expected = model(ids).logits
    results, memory = read(model.bfloat16(), ids, [20] + [1] * 20, use_cache=use_cache)
    assert results.dtype == torch.bfloat16
    held = (memory["past_key_values"].memory if use_cache else memory["mems"]).named_tensors().values()
    assert {each.dtype for each in held} == {torch.bfloat16, torch.long}
    torch.testing.assert_close(results.double(), expected, atol=0.3, rtol=0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compressed_mem_len": 0}, "`compressed_mem_len`=0 must be at least 1"),
        ({"compression_rate": 0}, "`compression_rate`=0 must be at least 1"),
        ({"compression_function": "attention"}, "`compression_function`='attention' must be one of"),
        ({"reconstruction_loss_coef": -1.0}, "`reconstruction_loss_coef`=-1.0 must not be negative"),
        ({"mem_len": 0, "same_length": False}, "`mem_len`=0 must be at least 1"),
    ],
)
def test_what_cannot_run_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        CompressiveTransformerConfig(**fields)


@pytest.mark.parametrize("is_padded", [False, True])
@use_cache
@torch.no_grad()
def test_a_long_call_is_a_loop_of_calls(is_padded: bool, use_cache, monkeypatch):
    """The same states and memory, with documents inside; never more vectors than are remembered and a part compresses."""
    model, ids = language_model(), tokens(2, 70)
    mask, reset, seen = torch.ones(2, 70, dtype=torch.long), torch.zeros(2, 70, dtype=torch.bool), []
    mask[0, 5:20], reset[1, 33] = 0, True
    told = {"attention_mask": mask, "reset": reset} if is_padded else {}
    before = memory_of(model(ids[:, :9], use_cache=use_cache))
    whole = model(ids, use_cache=use_cache, output_hidden_states=True, **told, **before)
    far = CompressionPlan.far

    def noting(plan, key, value):
        seen.append(key.shape[2])
        return far(plan, key, value)

    monkeypatch.setattr(CompressionPlan, "far", noting)
    for module in (attention, modeling_compressive_transformer):
        monkeypatch.setattr(module, "PIECE_LENGTH", 4)
    before = memory_of(model(ids[:, :9], use_cache=use_cache))
    parts = model(ids, use_cache=use_cache, output_hidden_states=True, **told, **before)
    assert len(seen) > 10 * model.config.num_hidden_layers
    assert max(seen) <= FAR + (MEM_LEN + RATE) // RATE + 1
    real = mask.bool() if is_padded else slice(None)
    for mine, other in zip(parts.hidden_states, whole.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], other[real], **EXACT)
    torch.testing.assert_close(parts.logits[real], whole.logits[real], **EXACT)
    assert_same_memory(parts.mems, whole.mems)


@torch.no_grad()
def test_more_may_be_compressed_than_the_window_holds():
    model, ids = tiny_model("compressive_transformer", mem_len=2, compressed_mem_len=6), tokens(2, 30)
    whole = model(ids).last_hidden_state
    for lengths in ([5] * 6, [1] * 30):
        torch.testing.assert_close(read(model, ids, lengths, use_cache=True)[0], whole, **EXACT)
