"""TRL's trainers: the loss that they compute is the model's own or is refused, and packed documents stay apart."""

import copy
import math
from pathlib import Path

import pytest
import torch
from optional_packages import needs
from tiny import ROWS, models, one_of_each_kind, tiny_model
from tiny_bases import tiny_base
from transformers import AutoModelForCausalLM, Trainer

datasets, peft, trl = map(needs, ("datasets", "peft", "trl"))
from transformers_xl import ByteTokenizer, add_memory  # noqa: E402

TOKENIZER = ByteTokenizer(split_special_tokens=False)  # TRL writes the end of a text as text
TEXTS = ["The quick fox", "jumps over.", "A lazy dog, and then it sleeps", "x y z", "Who is there?", "Nobody"]
ADAPTIVE = {"cutoffs": [100, 200], "div_val": 2}
PLAIN = {"intermediate_losses": "none", "num_targets": 1}
HEADS = {
    **{name: (name, {}) for name in models(causal_lm=True)},
    "clusters": ("transformer_xl", ADAPTIVE),
    "free steps": ("universal_transformer", {"ponder_loss_coef": 0.0}),
    "free spans": ("adaptive_span", {"span_loss_coef": 0.0}),
    "free compression": ("compressive_transformer", {"reconstruction_loss_coef": 0.0}),
    "vanilla without further losses": ("vanilla_transformer", PLAIN),
    "last position": ("vanilla_transformer", PLAIN | {"every_position_loss": False}),
    "complex clusters": ("complex_order_transformer", ADAPTIVE),
}
OWN_LOSS = {
    "clusters": "that of an adaptive softmax",
    "complex clusters": "that of moduli",
    "complex_order_transformer": "that of moduli",
    "universal_transformer": "`ponder_loss_coef`=0.01",
    "adaptive_span": "`span_loss_coef`=2e-06",
    "compressive_transformer": "`reconstruction_loss_coef`=1.0",
    "depth_adaptive_transformer": "`exit_training`='aligned'",
    "vanilla_transformer": "`intermediate_losses`='hard', `num_targets`=2",
    "last position": "`every_position_loss`=False",
}


class OwnLossTrainer(trl.SFTTrainer):
    """As docs/peft_trl.md has it."""

    compute_loss = Trainer.compute_loss


def language_model(model_type: str, **fields):
    sizes = {"segment_length": 128} | ({} if ROWS[model_type].memory == "none" else {"mem_len": 16})
    special = {"vocab_size": 259, "pad_token_id": 256, "eos_token_id": 258}
    return tiny_model(model_type, "causal_lm", torch.float32, **(special | sizes | fields))


def trainer_of(model, folder: Path, trainer_class=trl.SFTTrainer, texts=TEXTS, **fields):
    defaults = {"max_length": 64, "per_device_train_batch_size": 2, "save_strategy": "no", "max_grad_norm": 0.0}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "logging_steps": 1}
    args = trl.SFTConfig(str(folder), **(quiet | defaults | fields))
    data = datasets.Dataset.from_dict({"text": texts})
    return trainer_class(model, args, train_dataset=data, processing_class=TOKENIZER)


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_the_models_own_or_refused(head: str, tmp_path: Path):
    model_type, fields = HEADS[head]
    trainer = trainer_of(language_model(model_type, **fields), tmp_path)
    batch = dict(next(iter(trainer.get_train_dataloader())))
    trainer.model.train()
    own = trainer.model(**batch).loss
    if head in OWN_LOSS:
        with pytest.raises(ValueError, match=f"`fused_lm_head`=True .*{OWN_LOSS[head]}.*docs/peft_trl.md"):
            trainer.compute_loss(trainer.model, batch)
        trainer = trainer_of(language_model(model_type, **fields), tmp_path, OwnLossTrainer)
        trainer.model.train()
        batch = dict(next(iter(trainer.get_train_dataloader())))
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.requires_grad
    torch.testing.assert_close(loss, own, equal_nan=head == "last position")  # it needs `shift_labels`


def test_the_loss_is_refused_behind_an_adapter(tmp_path: Path):
    model = peft.get_peft_model(language_model("universal_transformer"), peft.LoraConfig(r=2))
    with pytest.raises(ValueError, match="`fused_lm_head`=True .*`ponder_loss_coef`=0.01"):
        trainer_of(model, tmp_path, max_steps=1).train()


def test_the_loss_of_a_router_is_refused(tmp_path: Path):
    base = tiny_base("qwen3_moe", vocab_size=259, pad_token_id=256, eos_token_id=258).float()
    trainer = trainer_of(add_memory(base, mem_len=16), tmp_path)
    with pytest.raises(ValueError, match="`output_router_logits` .*`router_aux_loss_coef`=0.0"):
        trainer.train()
    trainer_of(add_memory(base, mem_len=16), tmp_path, router_aux_loss_coef=0.0, max_steps=1).train()


@pytest.mark.parametrize("model_type", one_of_each_kind(models(causal_lm=True)))  # test_packed_documents.py: all
def test_packed_documents_do_not_see_each_other(model_type: str, tmp_path: Path):
    """The loss of a packed row is that of its documents, read alone."""
    trainer_class = OwnLossTrainer if model_type in OWN_LOSS else trl.SFTTrainer
    trainer = trainer_of(language_model(model_type), tmp_path, trainer_class, packing=True)
    batch = dict(next(iter(trainer.get_train_dataloader())))
    model = trainer.model.eval()
    starts = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    assert len(starts) >= 4
    nats, count = 0.0, 0
    with torch.no_grad():
        packed = trainer.compute_loss(model, dict(batch))
        for start, end in zip(starts, [*starts[1:], batch["input_ids"].shape[1]], strict=True):
            document = batch["input_ids"][:, start:end]
            nats += model(document, labels=document).loss * (end - start - 1)
            count += end - start - 1
    torch.testing.assert_close(packed, nats / count, atol=1e-5, rtol=1e-5)


def test_sft_with_packing(tmp_path: Path):
    trainer = trainer_of(
        language_model("transformer_xl"), tmp_path, packing=True, num_train_epochs=15, learning_rate=5e-3
    )
    first = trainer.train_dataset[0]["input_ids"]
    assert first.count(TOKENIZER.eos_token_id) >= 2
    assert {*TOKENIZER.decode(first).removesuffix("<|eos|>").split("<|eos|>")} <= {*TEXTS}
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("with_adapter", [False, True])
def test_dpo(with_adapter: bool, tmp_path: Path):
    """What is chosen gains on what is rejected, and the log-probabilities are the model's."""
    rows = [
        {"prompt": "Who is there? ", "chosen": "Nobody.", "rejected": "Everybody!"},
        {"prompt": "x ", "chosen": "y", "rejected": "z z"},
    ]
    args = trl.DPOConfig(
        str(tmp_path), per_device_train_batch_size=2, num_train_epochs=8, learning_rate=2e-2, logging_steps=1,
        report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, save_strategy="no",
    )  # fmt: skip
    language_model("transformer_xl").save_pretrained(tmp_path / "model")  # from here TRL loads the reference
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    expected = torch.stack([log_prob(model, row["prompt"], row["chosen"]) for row in rows]).mean()
    trainer = trl.DPOTrainer(
        model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=TOKENIZER,
        peft_config=peft.LoraConfig(r=4) if with_adapter else None,
    )  # fmt: skip
    trainer.train()
    log = [row for row in trainer.state.log_history if "loss" in row]
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert log[0]["logps/chosen"] == pytest.approx(expected.item(), abs=1e-3)
    assert log[-1]["loss"] < log[0]["loss"] - 0.1
    assert log[-1]["rewards/margins"] > 0.1


@torch.no_grad()
def log_prob(model, prompt: str, answer: str) -> torch.Tensor:
    """Of the answer and its end behind the prompt, in nats."""
    ids = torch.tensor([[*prompt.encode(), *answer.encode(), 258]])
    length = len(answer.encode()) + 1
    log_probs = model(ids).logits[0, :-1].log_softmax(-1)
    return log_probs.gather(-1, ids[0, 1:, None])[-length:].sum()


def reinforced(kind: str, folder: Path, model_type: str = "transformer_xl"):
    """A trainer of TRL that rewards small bytes, and the texts that it rewarded, prompt and answer, in order."""
    texts: list[tuple[str, list[int]]] = []

    def small_bytes(prompts: list[str], completion_ids: list[list[int]], **kwargs) -> list[float]:
        texts.extend(zip(prompts, completion_ids, strict=True))
        return [sum(token < 64 for token in answer) / len(answer) for answer in completion_ids]

    args = getattr(trl, f"{kind}Config")(
        str(folder), per_device_train_batch_size=8, num_generations=4, max_completion_length=8, max_steps=20, beta=0.01,
        learning_rate=2e-2, logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
        save_strategy="no",
    )  # fmt: skip
    prompts = datasets.Dataset.from_list([{"prompt": "Who is there? " * 2}, {"prompt": "x "}] * 8)
    language_model(model_type).save_pretrained(folder / "model")  # from here RLOO loads the reference
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    trainer = getattr(trl, f"{kind}Trainer")(
        model, small_bytes, args=args, train_dataset=prompts, processing_class=TOKENIZER
    )
    return trainer, texts


@torch.no_grad()
def entropy(model, texts: list[tuple[str, list[int]]]) -> torch.Tensor:
    """Of the model's predictions of answers, in nats: the mean over their tokens, each text read alone."""
    parts = []
    for prompt, answer in texts:
        log_probs = model(torch.tensor([[*prompt.encode(), *answer]])).logits[0, :-1].log_softmax(-1)
        parts.append(-(log_probs.exp() * log_probs).sum(-1)[-len(answer) :])
    return torch.cat(parts).mean()


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_a_reward_is_learned(kind: str, tmp_path: Path):
    """Prompts of two lengths, one past the memory, are answered with `generate()` and read again with padding: what TRL
    finds then is what the model says of each text alone."""
    trainer, texts = reinforced(kind, tmp_path)
    untrained = language_model("transformer_xl")  # the same weights
    trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    assert len({len(prompt) for prompt, _ in texts[:8]}) == 2
    assert log[0]["entropy"] == pytest.approx(entropy(untrained, texts[:8]).item(), abs=1e-3)
    assert log[0]["reward"] < 0.6
    assert log[-1]["reward"] > 0.8


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_a_reward_is_refused_where_the_loss_is_the_models_own(kind: str, tmp_path: Path):
    trainer, _ = reinforced(kind, tmp_path, "universal_transformer")
    with pytest.raises(ValueError, match="`fused_lm_head`=True .*`ponder_loss_coef`=0.01"):
        trainer.train()


ANSWERS = [
    {"prompt": "Who is there? ", "completion": "Nobody.", "label": True},
    {"prompt": "x ", "completion": "y", "label": True},
    {"prompt": "Who is there? ", "completion": "Everybody!", "label": False},
    {"prompt": "x ", "completion": "z z", "label": False},
]


def kto_trainer(model, folder: Path):
    args = trl.KTOConfig(
        str(folder), per_device_train_batch_size=4, num_train_epochs=8, learning_rate=2e-2, logging_steps=1,
        report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, save_strategy="no",
    )  # fmt: skip
    return trl.KTOTrainer(
        model, ref_model=copy.deepcopy(model), args=args, train_dataset=datasets.Dataset.from_list(ANSWERS),
        processing_class=TOKENIZER,
    )  # fmt: skip


def test_kto(tmp_path: Path):
    """What is wanted gains on what is not, and the log-probabilities are the model's."""
    model = language_model("transformer_xl")
    good = [log_prob(model, row["prompt"], row["completion"]) for row in ANSWERS if row["label"]]
    trainer = kto_trainer(model, tmp_path)
    trainer.train()
    log = [row for row in trainer.state.log_history if "loss" in row]
    assert log[0]["logps/chosen"] == pytest.approx(torch.stack(good).mean().item(), abs=1e-3)
    assert log[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-3)
    assert log[-1]["rewards/margins"] > 0.1
    assert log[-1]["loss"] < log[0]["loss"] - 0.1


def test_kto_is_refused_where_the_loss_is_the_models_own(tmp_path: Path):
    with pytest.raises(ValueError, match="`fused_lm_head`=True .*adaptive softmax"):
        kto_trainer(language_model("transformer_xl", **ADAPTIVE), tmp_path).train()


def test_dpo_is_refused_where_the_loss_is_the_models_own(tmp_path: Path):
    rows = datasets.Dataset.from_list([{"prompt": "x ", "chosen": "y", "rejected": "z"}])
    args = trl.DPOConfig(str(tmp_path), report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, max_steps=1)
    model = language_model("transformer_xl", **ADAPTIVE)
    trainer = trl.DPOTrainer(
        model, ref_model=copy.deepcopy(model), args=args, train_dataset=rows, processing_class=TOKENIZER
    )
    with pytest.raises(ValueError, match="`fused_lm_head`=True .*adaptive softmax"):
        trainer.train()
