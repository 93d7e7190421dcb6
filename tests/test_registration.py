"""`import transformers_xl` is all that the Auto classes need, whatever is imported first, and costs nothing by itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REGISTERED = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer
for model_type, row in VARIANTS.items():
    assert type(AutoConfig.for_model(model_type)) is row.config_class
config = AutoConfig.for_model("gtrxl", vocab_size=259, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
assert type(AutoModel.from_config(config)).__name__ == "GTrXLModel"
AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[1])
ByteTokenizer().save_pretrained(sys.argv[1])
assert type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__name__ == "GTrXLForCausalLM"
assert type(AutoTokenizer.from_pretrained(sys.argv[1])) is ByteTokenizer
import os
assert "modeling_gtrxl.py" in os.listdir(sys.argv[1])  # saved with its code
"""


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


FIRST = [
    "import transformers, transformers_xl; [getattr(transformers_xl, name) for name in transformers_xl.__all__]",
    "from transformers_xl.modeling.modeling_gtrxl import GTrXLModel",
    # who asks where a module would be has not imported it
    "import transformers_xl, importlib.util; importlib.util.find_spec('transformers')\n"
    "from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer",
]
# the folders that are waited for are those that registering imports: a module of them would be met half-imported
NOTHING_LEFT = """
import sys
before = list(sys.meta_path)
import transformers_xl, transformers
assert before == [finder for finder in sys.meta_path if not type(finder).__module__.startswith("transformers")]
assert type(transformers.__spec__.loader).__module__ == "_frozen_importlib_external", transformers.__spec__
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("transformers_xl.")}
waited_for = {name.split(".")[1] for name in transformers_xl.registration.NAMES if "." in name}
assert rooms - {"files", "registration"} == waited_for, rooms  # `files` knows nobody: it is never half-imported
# models know nothing of what pays on this processor (`runs`): neither importing nor building one
from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
TransformerXLForCausalLM(TransformerXLConfig(vocab_size=7, hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
assert not any(name.startswith("transformers_xl.runs") for name in sys.modules)
"""
# each in a process of its own, forked from one that has imported what they need, and of the two packages nothing
IN_FORKS = """
import os, sys, traceback
import datasets, huggingface_hub, safetensors.torch, tokenizers, torch, torch._dynamo, torch.distributed.tensor
assert not any(name.startswith("transformers") for name in sys.modules)
folder, *programs = sys.argv[1:]
for number, program in enumerate(programs):
    process = os.fork()
    if process == 0:
        try:
            sys.argv = ["-c", os.path.join(folder, str(number))]
            exec(program, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(f"\\n{number} ended with {os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}", flush=True)
"""


@pytest.mark.slow
def test_the_auto_classes_find_everything_whatever_is_imported_first(tmp_path: Path):
    """And nothing is left in the way of imports."""
    result = run("-c", IN_FORKS, str(tmp_path), *(first + REGISTERED for first in FIRST), NOTHING_LEFT)
    assert result.returncode == 0, result.stderr[-2000:]
    cases = [*FIRST, NOTHING_LEFT]
    ended = dict(zip(cases, re.findall(r"^\d ended with (\d+)$", result.stdout, flags=re.MULTILINE), strict=True))
    assert ended == dict.fromkeys(cases, "0"), result.stderr[-2000:]


def test_importing_the_package_imports_no_torch():
    result = run("-c", "import transformers_xl, sys; assert not {'torch', 'transformers'} & {*sys.modules}")
    assert result.returncode == 0, result.stderr


def test_help_of_the_module_imports_no_torch():
    """`python -X importtime` names every module that was imported, on stderr."""
    result = run("-X", "importtime", "-m", "transformers_xl.cli", "--help")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "Usage" in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "transformers_xl.cli.main" in imported
    assert not {"torch", "transformers"} & imported
