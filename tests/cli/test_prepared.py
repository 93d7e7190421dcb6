"""From the official file of a corpus to a model of its words, as docs/corpora.md and docs/recipes.md say."""

import json
from pathlib import Path

from programs import run
from stand_ins import stand_in
from transformers import AutoModelForCausalLM, AutoTokenizer

SMALL = (
    "--model.vocab_size 7 --model.hidden_size 16 --model.num_hidden_layers 2 --model.num_attention_heads 2 "
    "--model.intermediate_size 16 --model.segment_length 8 --data.overlap 4 --training.max_steps 3"
)


def test_a_recipe_on_a_corpus_that_was_prepared(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the recipe's corpus lies where the command runs
    source = stand_in("ptb", tmp_path, repeat=60)
    assert run("prepare", "ptb", source, "-o", "ptb", "--no-check").exit_code == 0
    trained = run("train", "--recipe", "r-transformer-ptb", "-o", "model", *SMALL.split())
    assert trained.exit_code == 0, (trained.output, trained.exception)
    model, tokenizer = (each.from_pretrained("model") for each in (AutoModelForCausalLM, AutoTokenizer))
    assert (model.config.model_type, model.config.rnn_type, model.config.vocab_size) == ("r_transformer", "lstm", 7)
    assert len(tokenizer) == 7
    assert tokenizer("the N\n")["input_ids"][-1] == tokenizer.eos_token_id
    scores = run("evaluate", "model", "--text", "ptb/test.txt", "--segment-length", 8, "--json")
    assert scores.exit_code == 0, (scores.output, scores.exception)
    (score, *_) = json.loads(scores.stdout).values()
    assert score["tokens"] == 60 * 2 - 1  # every word and every end of a line but the first
