"""The evaluation harness of EleutherAI: on a model, and on one behind a server. Its scores are those of the model itself,
read segment by segment."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from optional_packages import needs
from served import NAME, letters_model, serving
from tiny import tiny_model
from tiny_bases import tiny_base

from transformers_xl import ByteTokenizer, add_memory

PAGES = ["The quick brown fox jumps over the lazy dog. " * 4, "A short text."]
QUESTIONS = [("Sky is", ["blue", "green stone"], 0), ("Two and two", ["are four", "b"], 1)]
TASKS = {
    "pages": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\nmetric_list: "
    "[{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]",
    "choices": "output_type: multiple_choice\ndoc_to_text: '{{text}}'\ndoc_to_choice: '{{choices}}'\n"
    "doc_to_target: '{{answer}}'\nmetric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]",
    "written": "output_type: generate_until\ndoc_to_text: '{{text}}'\ndoc_to_target: ''\n"
    "generation_kwargs: {until: ['?'], max_gen_toks: 9}\n"
    "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three tasks, as their files say them."""
    folder = tmp_path_factory.mktemp("tasks")
    questions = [{"text": text, "choices": choices, "answer": answer} for text, choices, answer in QUESTIONS]
    rows = {"pages": [{"text": page} for page in PAGES], "choices": questions, "written": questions}
    for name, fields in TASKS.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows[name])))
        source = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / name}.jsonl}}}}\n"
        (folder / f"{name}.yaml").write_text(f"task: {name}\ntest_split: test\n{source}{fields}\n")
    return folder


def answers(harness: Any, tasks: Path) -> Iterator[tuple[str, Any]]:
    """What the harness got: of each task, the model's answers."""
    lm_eval = needs("lm_eval")
    known = needs("lm_eval.tasks").TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(harness, tasks=list(TASKS), task_manager=known, bootstrap_iters=0)
    for name in TASKS:
        for sample in sorted(found["samples"][name], key=lambda each: each["doc_id"]):
            yield name, [each[0] for each in sample["resps"]]


def log_probability(model: Any, context: bytes, text: bytes, begins: bool) -> float:
    """That of a text, read in segments of 7 tokens; `begins`: after a BOS."""
    ids = torch.tensor([[*([model.config.bos_token_id] if begins else []), *context, *text]])
    logits, mems = [], None
    with torch.no_grad():
        for piece in ids[:, :-1].split(7, dim=1):
            output = model(piece, mems=mems)
            logits.append(output.logits)
            mems = output.mems
    scores = torch.cat(logits, 1).log_softmax(-1).gather(2, ids[:, 1:, None]).flatten()
    return float(scores[-len(text) :].sum())


def expected(model: Any) -> Iterator[tuple[str, Any]]:
    for page in PAGES:
        yield "pages", [log_probability(model, b"", page.encode(), begins=True)]
    for text, choices, _ in QUESTIONS:
        found = [log_probability(model, text.encode(), f" {choice}".encode(), begins=False) for choice in choices]
        yield "choices", found
    for text, _, _ in QUESTIONS:
        ids = torch.tensor([list(text.encode())])
        written = model.generate(ids, max_new_tokens=9, do_sample=False)[0, ids.shape[1] :]
        yield "written", [ByteTokenizer().decode(written, skip_special_tokens=True).partition("?")[0]]


def check(found: Iterator[tuple[str, Any]], model: Any) -> None:
    for (name, got), (_, wanted) in zip(found, expected(model), strict=True):
        if name == "written":
            assert got == wanted
            continue
        numbers = [each[0] if isinstance(each, list | tuple) else each for each in got]
        torch.testing.assert_close(numbers, wanted, rtol=1e-5, atol=1e-4)


def language_model(kind: str) -> Any:
    torch.manual_seed(0)
    fields = {"vocab_size": 259, "bos_token_id": 257, "pad_token_id": 256, "eos_token_id": 258}
    if kind == "window":
        return add_memory(tiny_base("llama", **fields), mem_len=8)
    return tiny_model(kind, "causal_lm", torch.float32, mem_len=8, **fields)


@pytest.mark.parametrize("kind", ["transformer_xl", "streaming_transformer", "window"])
def test_a_model(kind: str, tasks: Path) -> None:
    """Right padding in a batch changes nothing, and a call longer than the memory is its segments."""
    model = language_model(kind).eval()
    harness = needs("lm_eval.models.huggingface").HFLM(model, tokenizer=ByteTokenizer(), batch_size=2, device="cpu")
    check(answers(harness, tasks), model)


def test_a_longer_text_is_cut() -> None:
    """At 2,048 tokens, unless `max_length` says otherwise: what docs/evaluation.md warns of."""
    model = language_model("transformer_xl").eval()
    instance = needs("lm_eval.api.instance").Instance("loglikelihood_rolling", {}, (PAGES[0],), 0)

    def score(**options) -> float:
        harness = needs("lm_eval.models.huggingface").HFLM(model, tokenizer=ByteTokenizer(), device="cpu", **options)
        assert harness.max_length == options.get("max_length", 2048)
        return harness.loglikelihood_rolling([instance])[0]

    whole = log_probability(model, b"", PAGES[0].encode(), begins=True)
    assert score() == pytest.approx(whole, abs=1e-3) == score(max_length=100_000)
    assert abs(score(max_length=16) - whole) > 0.1


def test_a_server(tasks: Path, tmp_path: Path) -> None:
    """Prompts as token ids, echoed with their log-probabilities."""
    needs("lm_eval")
    ByteTokenizer().save_pretrained(tmp_path, include_code=False)
    with serving() as here:
        harness = needs("lm_eval.models.openai_completions").LocalCompletionsAPI(
            model=NAME, base_url=f"{here.url}/v1/completions", tokenizer=str(tmp_path), batch_size=2
        )
        model = letters_model()
        model.config.bos_token_id = harness.prefix_token_id
        check(answers(harness, tasks), model)
