"""Training on pairs: the loss is the decoder's own, whatever is smoothed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import VOCAB_SIZE, tiny_config
from transformers import Seq2SeqTrainingArguments

from transformers_xl import MemoryEncoderDecoderConfig, MemoryForConditionalGeneration, ShawTransformerEncoderConfig
from transformers_xl.training.translation_trainer import TranslationTrainer

SPECIAL = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 0}
ROWS = [{"input_ids": [3, 4, 5 + n], "labels": [6 + n, 7, 8, 0]} for n in range(8)]


def model_of(decoder: str, **fields: Any) -> MemoryForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = ShawTransformerEncoderConfig(**sizes, **SPECIAL, dropout=0.0)
    decoder_config = tiny_config(decoder, **SPECIAL, **fields)
    config = MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder_config, share_embeddings=False)
    return MemoryForConditionalGeneration(config)


def trained(
    folder: Path, smoothing: float, decoder: str, **fields: Any
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of the training, and of the evaluation after it; and how far each weight of the decoder has moved."""
    model = model_of(decoder, **fields)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    args = Seq2SeqTrainingArguments(
        str(folder), per_device_train_batch_size=2, max_steps=3, learning_rate=1e-2, logging_steps=1, report_to="none",
        save_strategy="no", use_cpu=True, disable_tqdm=True, label_smoothing_factor=smoothing,
    )  # fmt: skip
    trainer = TranslationTrainer(model, args, train_dataset=ROWS, eval_dataset=ROWS)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    losses.append(trainer.evaluate()["eval_loss"])
    return losses, {name: (each.detach() - before[name]).abs().max() for name, each in model.named_parameters()}


@pytest.mark.parametrize(
    ("decoder", "fields"),
    [
        ("shaw_transformer", {}),
        ("universal_transformer", {}),
        ("depth_adaptive_transformer", {"halting": "multinomial"}),
    ],
)
def test_smoothing_leaves_the_other_terms_of_the_loss(decoder: str, fields: dict, tmp_path: Path) -> None:
    """Next to none of it changes nothing, halting networks learn; more of it makes the loss of the training another."""
    plain, moved = trained(tmp_path, 0.0, decoder, **fields)
    nearly, moved_too = trained(tmp_path, 1e-9, decoder, **fields)
    assert nearly == pytest.approx(plain, rel=1e-5)
    assert all(moved[name] > 0 for name in moved if "halting" in name)
    torch.testing.assert_close(moved_too, moved, rtol=1e-2, atol=1e-4)
    smoothed, _ = trained(tmp_path, 0.3, decoder, **fields)
    assert abs(smoothed[0] - plain[0]) > 1e-3


def test_a_smoothed_loss_is_that_of_transformers(tmp_path: Path) -> None:
    """Of a decoder without further terms: 1 - s of the cross-entropy, and s of its mean over all words."""
    model = model_of("shaw_transformer").train()
    batch = {name: torch.tensor([row[name] for row in ROWS[:2]]) for name in ("input_ids", "labels")}
    args = Seq2SeqTrainingArguments(str(tmp_path), report_to="none", use_cpu=True, label_smoothing_factor=0.3)
    trainer = TranslationTrainer(model, args)
    loss = trainer.compute_loss(model, dict(batch))
    log_probs = model(**batch).logits.log_softmax(-1)
    right = log_probs.gather(-1, batch["labels"][..., None]).mean()
    torch.testing.assert_close(loss, -0.7 * right - 0.3 * log_probs.mean())
    assert model.decoder.label_smoothing == 0.0


def test_clusters_are_not_smoothed(tmp_path: Path) -> None:
    model = model_of("transformer_xl", cutoffs=[10])
    args = Seq2SeqTrainingArguments(str(tmp_path), report_to="none", use_cpu=True, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="`label_smoothing_factor`=0.1.*`cutoffs`"):
        TranslationTrainer(model, args)
