"""A language model of transformers as people have one: a tiny Llama with its own tokenizer, chat template and card."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = "It was the best of times , it was the worst of times , it was the age of wisdom .\n" * 20
CARD = "---\nlicense: {license}\nlanguage: en\n---\n\n# A base\n"


def save_base(folder: Path, license: str = "apache-2.0", adds: str = "$A", **fields) -> Path:
    """Write a base with random weights to `folder`, whose tokenizer `adds` ids to a text; `fields` are of its config."""
    tokenizer = base_tokenizer(adds)
    fields = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id} | fields
    model = base_model(len(tokenizer), **fields)
    model.generation_config.repetition_penalty = 1.1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(CARD.format(license=license))
    return folder


def base_model(vocab_size: int, **fields) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **(sizes | fields)))


def base_tokenizer(adds: str = "$A") -> PreTrainedTokenizerFast:
    """Pairs of bytes, learned from [`TEXT`]; `adds`: what it makes of a text `$A`, such as `<s> $A </s>`, as ids that are
    no padding."""
    special_tokens = ["<s>", "</s>"] if adds == "$A" else ["<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if adds != "$A":
        tokenizer.post_processor = processors.TemplateProcessing(single=adds, special_tokens=[("<s>", 1), ("</s>", 2)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    return fast
