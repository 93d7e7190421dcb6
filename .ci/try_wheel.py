"""What a user of the installed wheel expects to work. Run outside of the checkout; the argument is the wheel."""

import os
import sys
import tempfile
import zipfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import transformers_xl

assert "site-packages" in transformers_xl.__file__, transformers_xl.__file__
names = zipfile.ZipFile(sys.argv[1]).namelist()
outside = [name for name in names if not name.startswith(("transformers_xl/", "transformers_xl-"))]
assert not outside, outside
assert "transformers_xl/py.typed" in names
assert "transformers_xl/runs/recipes/small-bytes.yaml" in names
assert "transformers_xl/runs/recipes/enwik8-12l.yaml" in names
assert not [name for name in names if any(part in name for part in ("tests", "benchmarks", "model_cards"))]

config = AutoConfig.for_model("transformer_xl", vocab_size=259, hidden_size=32, num_hidden_layers=2, mem_len=8)
model = AutoModelForCausalLM.from_config(config).eval()
tokenizer = transformers_xl.ByteTokenizer()
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert {"modeling_transformer_xl.py", "tokenization_bytes.py"} <= set(os.listdir(folder))  # the code that it needs
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    text = AutoTokenizer.from_pretrained(folder)("installed", return_tensors="pt")
assert torch.equal(loaded(**text).logits, model(**text).logits)
assert loaded.generate(**text, max_new_tokens=12, do_sample=False).shape[1] == text["input_ids"].shape[1] + 12
print("the wheel works:", transformers_xl.__version__)
