"""Texts that enter and leave one batch: each as if it were alone."""

import gc
from collections.abc import Iterable
from random import Random

import pytest
import torch
from by_hand import greedy, language_model
from optional_packages import needs
from tiny import (
    FEW_MEMORIES,
    MEM_LEN,
    VOCAB_SIZE,
    assert_same_memory,
    models,
    one_of_each_kind,
    tensors_of,
    tiny_model,
    tokens,
)

from transformers_xl import ByteTokenizer, Scheduler, TextRequest, generate_many
from transformers_xl.modeling.layers.key_index import search_by_index, search_exactly
from transformers_xl.serve.text_request import Progress, Written

KINDS = one_of_each_kind(models(causal=True, causal_lm=True, memory=("exact", "own")))
NO_END = {"stop_token_ids": ()}


def ids_of(length: int, seed: int = 0) -> list[int]:
    return tokens(1, length, seed=seed)[0].tolist()


def some_requests(count: int, **settings) -> list[TextRequest]:
    """Greedy and sampled, with prompts and outputs shorter and longer than a window."""
    draw = Random(0)
    kinds = [{"temperature": 0}, {"temperature": 1.0}, {"top_k": 5}, {"top_p": 0.7}]
    return [
        TextRequest(
            ids_of(draw.randint(1, 2 * MEM_LEN), seed),
            max_new_tokens=draw.randint(1, 2 * MEM_LEN),
            seed=seed,
            **NO_END,
            **(kinds[seed % len(kinds)] | settings),
        )
        for seed in range(count)
    ]


def run(scheduler: Scheduler) -> dict[int, list[Progress]]:
    """All steps; the progress of each request."""
    made: dict[int, list[Progress]] = {}
    while scheduler.num_waiting + scheduler.num_running:
        for progress in scheduler.step():
            made.setdefault(progress.request_id, []).append(progress)
    return made


def one(model, request: TextRequest, tokenizer=None, **options) -> Written:
    (written,) = generate_many(model, [request], tokenizer, **options)
    return written


def in_order(all_written: Iterable[Written]) -> list[Written]:
    return sorted(all_written, key=lambda each: each.number)


def arriving(scheduler: Scheduler, requests: list[TextRequest]) -> dict[int, list[Progress]]:
    """Requests that come between steps at random."""
    draw, made = Random(1), {}
    for request in requests:
        scheduler.add(request)
        for _ in range(draw.randint(0, 4)):
            for progress in scheduler.step():
                made.setdefault(progress.request_id, []).append(progress)
    for number, parts in run(scheduler).items():
        made.setdefault(number, []).extend(parts)
    return made


@pytest.mark.parametrize("model_type", KINDS)
def test_a_text_is_what_it_is_alone(model_type: str):
    """Rows that come and go at random, with their own settings; and what each remembers at its end."""
    model, requests = language_model(model_type), some_requests(8)
    made = arriving(Scheduler(model, capacity=3, piece=4), requests)
    alone = list(generate_many(model, requests, capacity=1, piece=4))
    assert [each.number for each in alone] == list(range(len(requests)))
    for request, written in zip(requests, alone, strict=True):
        *_, last = parts = made[written.number]
        assert tuple(token for part in parts for token in part.token_ids) == written.token_ids
        assert len(written.token_ids) == request.max_new_tokens
        assert last.finish_reason == written.finish_reason == "length"
        assert last.unread_ids == written.unread_ids == written.token_ids[-1:]
        assert_same_memory(last.memory, written.memory)
        if request.temperature == 0:
            prompt = torch.tensor([request.input_ids])
            text = greedy(model, prompt, new=request.max_new_tokens, eos_token_id=None)
            assert text[0, prompt.shape[1] :].tolist() == list(written.token_ids)


@pytest.mark.parametrize("same_length", [True, False])
def test_first_columns_of_zeros_and_calls_that_are_segments(same_length: bool):
    model = language_model("transformer_xl", initial_memory="zeros", same_length=same_length)
    requests = some_requests(5)
    together = {each.number: each for each in generate_many(model, requests, capacity=3, piece=4)}
    for alone in generate_many(model, requests, capacity=1, piece=4):
        assert together[alone.number].token_ids == alone.token_ids
        assert_same_memory(together[alone.number].memory, alone.memory)


@pytest.mark.parametrize("model_type", [each for each in KINDS if each in FEW_MEMORIES])
def test_what_ended_continues_as_if_it_had_written_on(model_type: str):
    """From a memory of a request, of a call and of `generate()`, which do not change, beside another row."""
    model, ids = language_model(model_type), ids_of(MEM_LEN + 3)
    whole = one(model, TextRequest(ids, temperature=0, max_new_tokens=12, **NO_END)).token_ids
    first = one(model, TextRequest(ids, temperature=0, max_new_tokens=5, **NO_END))
    assert first.token_ids == whole[:5]
    assert not any(each.is_inference() for each in tensors_of(first.memory))
    called = model(torch.tensor([ids])).mems
    result = greedy(model, torch.tensor([ids]), new=2, eos_token_id=None, return_dict_in_generate=True)
    starts = [(first.memory, first.unread_ids, 5), (called, whole[:1], 1), (result.mems, whole[1:2], 2)]
    before = [[each.clone() for each in tensors_of(memory)] for memory, *_ in starts]
    settings = {"temperature": 0, **NO_END}
    requests = [TextRequest(some, memory, 12 - count, **settings) for memory, some, count in starts]
    for written in generate_many(model, requests, piece=4):
        assert written.token_ids == whole[starts[written.number][2] :]
    for (memory, *_), tensors in zip(starts, before, strict=True):
        assert all(map(torch.equal, tensors_of(memory), tensors))


def test_nobody_waits_for_a_long_prompt():
    """A row gets its token in every step, and a short prompt that came later is read before the long one."""
    scheduler = Scheduler(language_model("transformer_xl"), capacity=3, piece=4)
    settings = {"temperature": 0, **NO_END}
    running = scheduler.add(TextRequest(ids_of(2), max_new_tokens=30, **settings))
    assert [each.request_id for each in scheduler.step()] == [running]
    long = scheduler.add(TextRequest(ids_of(40), max_new_tokens=2, **settings))
    scheduler.step()
    short = scheduler.add(TextRequest(ids_of(3), max_new_tokens=2, **settings))
    assert (scheduler.num_waiting, scheduler.num_running) == (1, 2)
    began: dict[int, int] = {}
    for step in range(1, 14):
        made = scheduler.step()
        assert running in [each.request_id for each in made]
        assert len({each.request_id for each in made}) == len(made)
        for each in made:
            began.setdefault(each.request_id, step)
    assert began[short] <= 2
    assert began[long] == 9  # 36 tokens are left, four a step, beside the short prompt too


def test_capacity_is_fixed_and_rows_have_places():
    """A row that enters or leaves moves no other: storages stay, and so does what rows before it remember."""
    scheduler = Scheduler(language_model("transformer_xl"), capacity=3, piece=64)
    for seed, count in enumerate((30, 3, 30, 4, 5)):
        scheduler.add(TextRequest(ids_of(5, seed), max_new_tokens=count, seed=seed, **NO_END))
    scheduler.step()
    assert (scheduler.num_waiting, scheduler.num_running) == (2, 3)
    layer_cache = scheduler._slots.cache.layer_caches[0]
    moves = []
    while scheduler.num_running:
        places, before = [each.data_ptr() for each in layer_cache.places], layer_cache.end
        scheduler.step()
        assert scheduler.num_running <= 3
        assert all(len(each) == 3 for each in layer_cache.places)
        moves.append((places != [each.data_ptr() for each in layer_cache.places], layer_cache.end < before))
    assert len(moves) >= 25
    assert not any(moved for moved, is_full in moves if not is_full)


def test_stop_texts_and_tokens():
    tokenizer = ByteTokenizer()
    model = tiny_model("transformer_xl", "causal_lm", vocab_size=len(tokenizer), initializer_range=0.6)
    request = TextRequest(list(b"abc"), max_new_tokens=20, seed=3, **NO_END)
    ids = one(model, request, tokenizer).token_ids
    text = tokenizer.decode(ids)
    stop = next(text[at : at + 2] for at in range(4, 18) if "\ufffd" not in text[at : at + 2])
    ended = one(model, TextRequest(list(b"abc"), max_new_tokens=20, seed=3, stop=("zz", stop), **NO_END), tokenizer)
    assert (ended.text, ended.finish_reason) == (text[: text.index(stop)], "stop")
    assert ended.token_ids == ids[: len(ended.token_ids)]
    assert stop in tokenizer.decode(ended.token_ids)
    assert ended.unread_ids == ended.token_ids[-1:]
    last = ids[7]
    number = ids.index(last)
    by_token = one(model, TextRequest(list(b"abc"), max_new_tokens=20, seed=3, stop_token_ids=(last,)), tokenizer)
    assert (by_token.token_ids, by_token.finish_reason) == (ids[: number + 1], "stop")
    assert by_token.text == tokenizer.decode(ids[:number])
    model.generation_config.eos_token_id = [VOCAB_SIZE, last]
    by_config = one(model, TextRequest(list(b"abc"), max_new_tokens=20, seed=3), tokenizer)
    assert by_config.token_ids == by_token.token_ids


def test_log_probabilities_are_those_of_one_call():
    """Of the prompt and of what is written, sampled or not, beside a row that asks for none."""
    model, ids = language_model("transformer_xl"), ids_of(9)
    request = TextRequest(
        ids, max_new_tokens=6, temperature=0.5, seed=1, top_logprobs=3, prompt_logprobs=True, **NO_END
    )
    written, other = in_order(generate_many(model, [request, TextRequest(ids, max_new_tokens=6, **NO_END)], piece=4))
    assert (other.logprobs, other.prompt_logprobs) == ((), ())
    sequence = torch.tensor([ids + list(written.token_ids)])
    expected = model(sequence).logits[0].log_softmax(-1)
    assert written.prompt_logprobs[0] is None
    found = written.prompt_logprobs[1:] + written.logprobs
    assert [each.token_id for each in found] == sequence[0, 1:].tolist()
    for row, each in enumerate(found):
        assert each.logprob == pytest.approx(expected[row, each.token_id].item())
        values, best = expected[row].topk(3)
        assert [token for token, _ in each.top] == best.tolist()
        assert [value for _, value in each.top] == pytest.approx(values.tolist())


def test_a_prompt_is_scored_without_writing():
    model, ids = language_model("transformer_xl"), ids_of(9)
    scored = one(model, TextRequest(ids, max_new_tokens=0, prompt_logprobs=True), piece=4)
    assert (scored.token_ids, scored.finish_reason, scored.unread_ids) == ((), "length", (ids[-1],))
    expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)[range(8), ids[1:]]
    assert [each.logprob for each in scored.prompt_logprobs[1:]] == pytest.approx(expected.tolist())
    assert scored.memory.tokens_read.tolist() == [8]
    nothing = one(model, TextRequest(ids[:1], max_new_tokens=0, prompt_logprobs=True))
    assert (nothing.prompt_logprobs, nothing.memory, nothing.unread_ids) == ((None,), None, (ids[0],))


def test_a_cancelled_request_can_be_continued():
    """While it waits, while its prompt is read, and while it writes; the others write on."""
    model, ids = language_model("transformer_xl"), ids_of(10)
    settings = {"temperature": 0, **NO_END}
    whole = one(model, TextRequest(ids, max_new_tokens=12, **settings)).token_ids
    for steps in (0, 2, 7):
        scheduler = Scheduler(model, capacity=2, piece=4)
        other = scheduler.add(TextRequest(ids, max_new_tokens=12, **settings))
        number = scheduler.add(TextRequest(ids, max_new_tokens=12, **settings))
        made = [each for _ in range(steps) for each in scheduler.step()]
        assert scheduler.cancel(number)
        rest = run(scheduler)
        (last,) = rest[number]
        written = tuple(token for each in made if each.request_id == number for token in each.token_ids)
        assert (last.finish_reason, last.token_ids, written) == ("cancelled", (), whole[: len(written)])
        assert rest[other][-1].finish_reason == "length"
        again = TextRequest(last.unread_ids, last.memory, 12 - len(written), **settings)
        assert written + one(model, again).token_ids == whole
        assert not scheduler.cancel(number)
        assert not scheduler.cancel(99)


def test_seeds():
    """The same seed, the same text; without one, another text every time."""
    model = language_model("transformer_xl")
    requests = [TextRequest([5], max_new_tokens=30, seed=seed, **NO_END) for seed in (1, 1, 2, None, None)]
    texts = [each.token_ids for each in in_order(generate_many(model, requests))]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


def test_types_of_memory_stay():
    model = tiny_model("sha_rnn", "causal_lm", dtype=torch.bfloat16)
    memory = one(model, TextRequest(ids_of(3), max_new_tokens=4, seed=0, **NO_END)).memory
    assert {each.dtype for each in tensors_of(memory)} == {torch.bfloat16, torch.long}
    whole = TextRequest([5], memory.to(dtype=torch.float64), max_new_tokens=2, seed=0, **NO_END)
    assert {each.dtype for each in tensors_of(one(model, whole).memory)} == {torch.bfloat16, torch.long}


def test_keys_are_found_by_an_index():
    needs("faiss")
    requests = some_requests(6)
    model = language_model("memorizing_transformer", num_memory_keys=60)
    exact = in_order(generate_many(search_exactly(model), requests, capacity=3))
    found = in_order(generate_many(search_by_index(model, min_keys=4, num_probes=60), requests, capacity=3))
    assert [each.token_ids for each in found] == [each.token_ids for each in exact]


def test_what_a_base_has_projected_stays_when_a_row_enters():
    """Memory tokens: the caches of open segments go along, so that no row is read again."""
    model = language_model("segment_memory/tokens")
    scheduler = Scheduler(model, capacity=3)
    for seed in range(3):
        scheduler.add(TextRequest(ids_of(2 + seed, seed), max_new_tokens=9, seed=seed, **NO_END))
    for _ in range(3):
        scheduler.step()
    cache = scheduler._slots.cache
    opened = cache.memory.lengths.nonzero().flatten().tolist()
    assert len(opened) > 1
    assert sorted(row for group in cache.layer_caches[0].derived.groups for row in group.rows) == opened


def test_nothing_stays_of_what_ended():
    model = language_model("transformer_xl")
    scheduler, counts = Scheduler(model, capacity=4, piece=4), []
    for seed in range(60):
        number = scheduler.add(TextRequest(ids_of(1 + seed % 9, seed), max_new_tokens=1 + seed % 4, seed=seed))
        scheduler.step()
        if seed % 7 == 0:
            scheduler.cancel(number)
        if seed % 20 == 19:
            run(scheduler)
            gc.collect()
            counts.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))
    assert counts[1] == counts[2]
    assert not scheduler._texts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_ids", []),
        ("input_ids", [1, "a"]),
        ("input_ids", "abc"),
        ("input_ids", [VOCAB_SIZE]),
        ("input_ids", [-1]),
        ("memory", [torch.zeros(1)]),
        ("max_new_tokens", -1),
        ("max_new_tokens", 2.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", True),
        ("seed", "a"),
        ("stop", ("",)),
        ("stop", "a text"),
        ("stop", ("a",)),  # there is no tokenizer
        ("stop_token_ids", (VOCAB_SIZE,)),
        ("stop_token_ids", 3),
        ("top_logprobs", -1),
        ("top_logprobs", VOCAB_SIZE + 1),
        ("prompt_logprobs", 1),
    ],
)
def test_what_cannot_be_honoured_is_refused(field: str, value):
    scheduler = Scheduler(language_model("transformer_xl"), capacity=1)
    with pytest.raises(ValueError, match=f"`{field}`"):
        scheduler.add(TextRequest(**({"input_ids": [5]} | {field: value})))
    assert scheduler.num_waiting == 0


def test_memories_of_others_are_refused():
    """Of another model, as inputs and as keys and values, and of two rows: before anything is read."""
    scheduler, ids = Scheduler(language_model("transformer_xl"), capacity=1), tokens(2, 3)
    other = language_model("transformer_xl", hidden_size=16)
    deeper = language_model("transformer_xl", num_hidden_layers=3)
    memories = [other(ids[:1]).mems, other(ids[:1], use_cache=True).mems, deeper(ids[:1]).mems]
    memories += [scheduler.model(ids).mems, language_model("sha_rnn")(ids[:1]).mems]
    for memory in memories:
        with pytest.raises(ValueError, match="`memory` does not fit the model"):
            scheduler.add(TextRequest([5], memory))


def test_models_that_cannot_be_run_are_refused():
    model = language_model("transformer_xl")
    for wrong, said in (
        (language_model("vanilla_transformer"), "remembers nothing"),
        (language_model("transformer_xl", mem_len=0, same_length=False), "remembers nothing"),
        (tiny_model("transformer_xl"), "causal language model"),
        (torch.nn.Linear(1, 1), "causal language model"),
    ):
        with pytest.raises(ValueError, match=said):
            Scheduler(wrong)
    for options in ({"capacity": 0}, {"piece": 0}, {"capacity": 1.5}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
            generate_many(model, [], **options)
    with pytest.raises(ValueError, match="training mode"):
        Scheduler(model.train())
