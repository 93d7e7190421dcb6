"""`train`, `evaluate` and `generate` on pairs of sentences, on 200 pairs that the test makes."""

import json
import math
import os
import random
import signal
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from optional_packages import needs
from programs import run
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerState

from transformers_xl.data.pairs import text_ids
from transformers_xl.evaluation.translations import score_translations, translate
from transformers_xl.files.written import RECORD
from transformers_xl.hub import cards
from transformers_xl.hub.cards import Choices, card_for_push, write_card
from transformers_xl.runs.training_run import ConfigWriter

SMALL = (
    "--model.hidden_size 32 --model.num_hidden_layers 1 --model.intermediate_size 64 --model.num_attention_heads 2 "
    "--training.max_steps 150 --training.learning_rate 0.01 --training.save_steps 75"
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of words, and the same in capital letters."""
    needs("sacrebleu")
    folder, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    words = [" ".join("".join(draw.choices("abcd", k=2)) for _ in range(2)) for _ in range(200)]
    (folder / "a.en").write_text("\n".join(words) + "\n")
    (folder / "a.de").write_text("\n".join(words).upper() + "\n")
    rows = [{"translation": {"en": word, "de": word.upper()}} for word in words]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def trained(pairs: Path) -> tuple[Path, dict]:
    words = ["train", "--data.source", pairs / "a.en", "--data.target", pairs / "a.de", "-o", pairs / "out", "--json"]
    result = run(*words, *SMALL.split())
    assert result.exit_code == 0, (result.output, result.exception)
    return pairs / "out", json.loads(result.stdout)


def test_what_is_trained_translates(pairs: Path, trained: tuple[Path, dict]) -> None:
    folder, scores = trained
    assert scores["chrf"] > 70
    assert scores["pairs"] == 10
    assert 1 < scores["perplexity"] < 2
    assert not (folder / "training_args.bin").exists()
    assert json.loads((folder / "translation_metrics.json").read_text()).items() >= scores.items()
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.encoder.model_type == "shaw_transformer_encoder"
    lines = (pairs / "a.en").read_text().splitlines()[:40]
    made = translate(model.eval(), tokenizer, lines)
    right = sum(text == line.upper() for text, line in zip(made, lines, strict=True))
    assert right > 20
    (pairs / "few.en").write_text("\n".join(lines) + "\n")
    (pairs / "few.de").write_text("\n".join(lines).upper() + "\n")
    result = run("evaluate", folder, "--source", pairs / "few.en", "--target", pairs / "few.de", "--json")
    refused = run("evaluate", folder, "--text", pairs / "few.en")
    assert "with --source and --target" in " ".join(refused.output.split())
    found = json.loads(result.stdout)
    assert {name: found[name] for name in ("bleu", "chrf")} == {
        name: score_translations(made, [line.upper() for line in lines])[name] for name in ("bleu", "chrf")
    }
    result = run("generate", folder, "--prompt", lines[0], "--prompt-file", pairs / "few.en")
    assert result.stdout.splitlines() == [made[0], *made]


def test_a_translator_is_trained_on(pairs: Path, trained: tuple[Path, dict]) -> None:
    """From its weights and with its words; fields that change no weight may be others, in both of its parts."""
    given = ["--data.source", pairs / "a.en", "--data.target", pairs / "a.de", "--model.base", trained[0], "--json"]
    few = ["--training.max_steps", 2, "--training.learning_rate", 1e-5, "--model.mem_len", 7, "--model.dropout", 0.2]
    result = run("train", *given, *few, "-o", pairs / "more")
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["chrf"] == pytest.approx(trained[1]["chrf"], abs=5)
    config = AutoModelForSeq2SeqLM.from_pretrained(pairs / "more").config
    assert (config.decoder.mem_len, config.decoder.dropout, config.encoder.dropout) == (7, 0.2, 0.2)
    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    tokenizer.add_tokens(["<one>", "<more>"])
    tokenizer.save_pretrained(pairs / "larger")
    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(pairs / "other")
    for words, said in (
        ((*given, "--model.hidden_size", 16), "but config.json asks for ["),
        ((pairs / "a.en", "--model.base", trained[0]), "name its pairs with `data.source`"),
        ((*given, "--memory.kind", "window"), "the fields of its memory are in `model`"),
        ((*given, "--tokenizer.path", pairs / "larger"), "is less than the 261 tokens"),
        ((*given, "--tokenizer.path", pairs / "other"), "`pad_token_id`=256 of the model is 258"),
    ):
        result = run("train", *words, "-o", pairs / "refused")
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())


def refuse_download(*args, **kwargs) -> None:
    raise EntryNotFoundError("a first push")


def test_a_translator_has_a_card(pairs: Path, trained: tuple[Path, dict], monkeypatch) -> None:
    monkeypatch.setattr(cards, "hf_hub_download", refuse_download)
    folder, scores = trained
    card = (folder / "README.md").read_text()
    assert f"| BLEU | {scores['bleu']} | `translation_metrics.json`: `bleu` |" in card
    assert "pipeline_tag: translation" in card
    assert "Give it to the call for the next sentence" in card
    code = card.split("```python\n")[1].split("```")[0].replace('"you/out"', repr(str(folder)))
    exec(compile(code, "README.md", "exec"), {})
    shown = run("card", folder, "--license", "mit", "--json")
    assert json.loads(shown.stdout)["metadata"]["license"] == "mit"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    for name, factor in (
        ("same", 1.0),
        ("changed", 2.0),
    ):  # a push writes the model into a folder, and a card beside it
        model.decoder.lm_head.bias.data *= factor
        model.save_pretrained(pairs / name)
        card_for_push(pairs / name, "you/none", str(folder), None, Choices())
        assert ("| BLEU |" in (pairs / name / "README.md").read_text()) == (name == "same")
    config = json.loads((folder / "config.json").read_text())
    (pairs / "both").mkdir()
    (pairs / "both/config.json").write_text(json.dumps(config | {"source_mem_len": 8}))
    write_card(pairs / "both")
    assert "the encoder's outputs for earlier sentences, up to 8" in (pairs / "both/README.md").read_text()
    (pairs / "hostile").mkdir()
    for part in ({"model_type": ["x"]}, None, {"model_type": "llama"}):
        (pairs / "hostile/config.json").write_text(json.dumps(config | {"encoder": part}))
        with pytest.raises(ValueError, match=r"`encoder.model_type`=.* is not a model of this package"):
            write_card(pairs / "hostile")


def test_smoothed_labels_train_on_the_same_targets(pairs: Path) -> None:
    """The perplexity is that of the targets, whatever the training smoothes: without a step, it is the same."""
    given = ["--data.source", pairs / "a.en", "--data.target", pairs / "a.de", "--training.max_steps", 1]
    given += ["--training.learning_rate", 0, "--json", *SMALL.split()[:8]]
    found = []
    given += ["--training.eval_strategy", "steps", "--training.save_strategy", "steps", "--training.save_steps", 1]
    for smoothing in (0.0, 0.5):
        name = f"smoothed-{smoothing}"
        result = run("train", *given, "--training.label_smoothing_factor", smoothing, "-o", pairs / name)
        assert result.exit_code == 0, (result.output, result.exception)
        (state,) = [json.loads(file.read_text()) for file in (pairs / name).rglob("trainer_state.json")]
        during = [row["eval_loss"] for row in state["log_history"] if "eval_loss" in row]
        found.append((json.loads(result.stdout)["perplexity"], during))
    assert found[0] == found[1]
    assert found[0][1]


def test_every_token_of_a_target_counts_alike(pairs: Path) -> None:
    """Whatever the batches: perplexity, and the loss that chooses the best model. Some targets are longer than others."""
    sources = [f"ab{' cd' * (number % 7)}" for number in range(20)]
    (pairs / "uneven.en").write_text("\n".join(sources) + "\n")
    (pairs / "uneven.de").write_text("\n".join(sources).upper() + "\n")
    uneven = ["--data.eval_source", pairs / "uneven.en", "--data.eval_target", pairs / "uneven.de"]
    given = ["--data.source", pairs / "a.en", "--data.target", pairs / "a.de", *uneven, *SMALL.split()[:8], "--json"]
    given += ["--training.max_steps", 8, "--training.learning_rate", 0.01, "--training.eval_strategy", "steps"]
    found, losses = [], []
    for size in (1, 5, 20):
        folder = pairs / f"by-{size}"
        words = ["--training.eval_steps", 8, "--training.save_steps", 8, "--data.eval_batch_size", size, "-o", folder]
        result = run("train", *given, *words)
        assert result.exit_code == 0, (result.output, result.exception)
        found.append(json.loads(result.stdout)["perplexity"])
        log = json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
        losses.append(next(row["eval_loss"] for row in log if "eval_loss" in row))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(pairs / "by-1"), AutoTokenizer.from_pretrained(folder)
    nats = tokens = 0
    for source in sources:
        ids, labels = (torch.tensor([text_ids(tokenizer, text)]) for text in (source, source.upper()))
        logits = model.eval()(input_ids=ids, labels=labels).logits[0]
        nats += torch.nn.functional.cross_entropy(logits, labels[0], reduction="sum").item()
        tokens += labels.numel()
    assert found == [pytest.approx(math.exp(nats / tokens), abs=2e-3)] * 3
    assert losses == [pytest.approx(nats / tokens, rel=1e-5)] * 3


def test_held_out_json_lines_by_name_and_of_a_folder(pairs: Path) -> None:
    rows = (pairs / "rows.jsonl").read_text().splitlines()
    (pairs / "known.jsonl").write_text("\n".join(rows[:180]))
    (pairs / "unseen.jsonl").write_text("\n".join(rows[180:]))
    fields = ["--data.source", "translation.en", "--data.target", "translation.de", "--json"]
    fields += ["--data.eval_path", pairs / "unseen.jsonl", *SMALL.split()[:8], "--training.max_steps", 1]
    result = run("train", pairs / "known.jsonl", *fields, "-o", pairs / "held-out")
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["pairs"] == 20
    folder = pairs / "splits"
    folder.mkdir()
    (pairs / "known.jsonl").rename(folder / "train.jsonl")
    (pairs / "unseen.jsonl").rename(folder / "valid.jsonl")
    of_folder = [*fields[:5], *SMALL.split()[:8], "--training.max_steps", 1, "-o", pairs / "of-folder"]
    result = run("train", folder, *of_folder)
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["pairs"] == 20
    weights, others = (load_file(pairs / name / "model.safetensors") for name in ("of-folder", "held-out"))
    assert all(torch.equal(weights[name], others[name]) for name in others)


def test_lines_stand_where_they_stood(pairs: Path, trained: tuple[Path, dict]) -> None:
    (pairs / "gaps.en").write_text("ab cd\n\nba dc\n")
    result = run("generate", trained[0], "--prompt-file", pairs / "gaps.en")
    lines = result.stdout.split("\n")
    assert len(lines) == 4
    assert [bool(line) for line in lines] == [True, False, True, False]


def test_another_variant_from_json_lines_and_resumed(pairs: Path) -> None:
    small = SMALL.replace("150", "4").replace("75", "2").split()
    fields = ["--data.source", "translation.en", "--data.target", "translation.de", "--model.variant", "macaron"]
    result = run("train", pairs / "rows.jsonl", *fields, "-o", pairs / "macaron", *small)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "macaron_encoder and macaron" in result.output
    result = run("train", "--resume", "-o", pairs / "macaron", "--training.max_steps", 6)
    assert result.exit_code == 0, (result.output, result.exception)
    assert (pairs / "macaron" / "checkpoint-6").is_dir()
    weights = (pairs / "macaron" / "model.safetensors").read_bytes()
    result = run("train", "--resume", "-o", pairs / "macaron", "--training.max_steps", 3)
    assert result.exit_code == 2
    assert "is above the 3 steps of this training" in result.output
    assert (pairs / "macaron" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("save_strategy", ["steps", "no"])
def test_a_training_that_is_stopped_is_saved_and_resumes_exactly(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_strategy: str
) -> None:
    def ask(self: ConfigWriter, args: object, state: TrainerState, *others: object, **more: object) -> None:
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    words = ["train", "--data.source", pairs / "a.en", "--data.target", pairs / "a.de", *SMALL.split()[:8]]
    words += ["--training.max_steps", 6, "--training.save_strategy", save_strategy]
    assert run(*words, "-o", tmp_path / "whole").exit_code == 0
    folder, handler = tmp_path / "stopped", signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(ConfigWriter, "on_pre_optimizer_step", ask)
        result = run(*words, "-o", folder)
    assert result.exit_code == 130, (result.output, result.exception)
    assert "stopped after step 3" in result.output
    assert f"train --resume -o {folder}" in result.output
    assert signal.getsignal(signal.SIGINT) is handler
    assert {path.name for path in folder.iterdir()} == {"checkpoint-3", "run.yaml", RECORD}
    result = run("train", "--resume", "-o", folder)
    assert result.exit_code == 0, (result.output, result.exception)
    ours, whole = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "whole"))
    torch.testing.assert_close(ours, whole, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--data.source {en}", "`data.target`=None"),
        ("--data.source {en} --data.target {de} --data.overlap 4", "`data.overlap`=4 has no meaning"),
        ("--data.source {en} --data.target {de} --data.eval_source {en}", "belong together"),
        ("{en} --data.target {de}", "name `data.source` too"),
        ("--data.source {en} --data.target {de} --data.eval_path {en}", "`data.eval_path`=["),
        ("--data.source {en} --data.target {de} --data.split some", "`data.split`='some' has no meaning"),
        ("--data.source {en}x --data.target {de}", "is no file"),
        (
            "--data.source {en} --data.target {de} --data.dataset a/b --data.eval_source {en} --data.eval_target {de}",
            "name its held-out rows with `data.eval_split`",
        ),
        (
            "--data.source {en} --data.target {de} --model.variant absolute_transformer_xl --model.segment_length 4",
            "The longest source has 6 tokens",
        ),
        ("--data.source {en} --data.target {de} --training.initial_mem_len 4", "`training.initial_mem_len`=4"),
        (
            "--data.source {en} --data.target {de} --model.variant sha_rnn",
            "Take another one, or join two models in Python",
        ),
    ],
)
def test_what_has_no_meaning_for_pairs_is_refused(pairs: Path, words: str, said: str) -> None:
    given = words.format(en=pairs / "a.en", de=pairs / "a.de").split()
    result = run("train", *given, "-o", pairs / "refused")
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_commands_say_what_they_need(pairs: Path, trained: tuple[Path, dict]) -> None:
    for words, said in (
        (("evaluate", trained[0]), "--source and --target"),
        (("evaluate", trained[0], "--source", pairs / "a.en"), "belong together"),
        (("evaluate", pairs, "--source", pairs / "a.en", "--target", pairs / "a.de"), "holds no encoder-decoder"),
        (("generate", trained[0], "-p", "ab", "--top-p", 0.5), "has no effect with a translation"),
        (("generate", trained[0]), "give a line to translate"),
    ):
        result = run(*words)
        assert result.exit_code == 2, (words, result.output)
        assert said in " ".join(result.output.split())
