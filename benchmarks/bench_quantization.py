"""What weights of 8 bits cost in bits per byte: with a plain output layer, and with an adaptive softmax that is not tied.

    pip install -c constraints.txt torchao
    python benchmarks/bench_quantization.py --text input.txt

Without torchao, which is not among what development needs, it says so and ends.
"""

import copy
import json
import warnings

import numpy as np
import torch
from bench_precision import RESULTS, build, options, texts, train
from torch import nn

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.bits_per_byte import bits_per_byte

try:
    import torchao
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
except ModuleNotFoundError:
    print("bench_quantization.py needs torchao: pip install -c constraints.txt torchao")
    raise SystemExit from None

FORMS = {
    "int8 weights, torchao": Int8WeightOnlyConfig,
    "int8 weights and activations, torchao": Int8DynamicActivationInt8WeightConfig,
}


def adaptive() -> TransformerXLForCausalLM:
    """The small model with clusters of 64, 64 and 128 bytes, the second and third narrower."""
    config = build("small").config.to_dict() | {"cutoffs": [64, 128], "div_val": 2, "tie_word_embeddings": False}
    torch.manual_seed(0)
    return TransformerXLForCausalLM(TransformerXLConfig(**config))


def measure(model: TransformerXLForCausalLM, ids: np.ndarray) -> dict[str, float]:
    """Bits per byte in each form; all linear layers are quantized, those of the output too."""
    scores = {"float32": bits_per_byte(model, ids, lanes=1)}
    for form, config in FORMS.items():
        mine = copy.deepcopy(model)
        quantize_(mine, config())
        scores[form] = bits_per_byte(mine, ids, lanes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch names torchao as its successor
        mine = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    return scores | {"int8 dynamic, torch": bits_per_byte(mine, ids, lanes=1)}


def main() -> None:
    args = options(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    text, train_ids, held_out = texts(args)
    result: dict = {
        "versions": f"torch {torch.__version__}, torchao {torchao.__version__}",
        "text": text,
        "bytes": args.bytes,
        "steps": {},
        "bits_per_byte": {},
    }
    for name, model in (("plain", build("small")), ("adaptive softmax", adaptive())):
        result["steps"][name] = train(model, train_ids, args.seconds)
        result["bits_per_byte"][name] = measure(model.eval(), held_out)
        print(name, result["bits_per_byte"][name], flush=True)
    (RESULTS / "quantization.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
