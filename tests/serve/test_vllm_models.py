"""The models inside vLLM, which stands in an environment of its own: `.ci/try_vllm.sh` makes it and runs this file."""

import gc
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from optional_packages import needs
from patience import PATIENCE
from tiny import VOCAB_SIZE, models, tiny_model

needs("vllm")
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}
from vllm import LLM, SamplingParams  # noqa: E402  it reads these when it is imported

REFUSED = {"vanilla_transformer", "compressive_transformer", "memorizing_transformer"}
RUN = [model_type for model_type in models(causal_lm=True) if model_type not in REFUSED]


def saved_model(folder: Path, model_type: str, **fields):
    model = tiny_model(model_type, "causal_lm", dtype=torch.float32, **fields)
    model.save_pretrained(folder)
    return model


@contextmanager
def engine(folder: Path, **options):
    """An engine for which no more than five requests run at a time, and whose calls have at most 24 tokens."""
    options = {
        "max_num_seqs": 5,
        "max_num_batched_tokens": 24,
        "skip_tokenizer_init": True,
        "dtype": "float32",
    } | options
    llm = LLM(str(folder), **options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def some_requests(seed: int) -> list[tuple[list[int], int]]:
    """Sixteen prompts, and how many tokens follow each."""
    chance = random.Random(seed)
    lengths = [chance.choice([1, 2, 5, 20, 45, 80]) for _ in range(16)]
    return [([chance.randrange(VOCAB_SIZE) for _ in range(length)], chance.randrange(1, 25)) for length in lengths]


def greedy(llm: LLM, requests: list[tuple[list[int], int]]) -> list[list[int]]:
    params = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False) for _, count in requests
    ]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt, _ in requests], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def alone(model, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [*((model_type, {}) for model_type in RUN), ("gtrxl", {"initial_memory": "zeros"}), ("macaron", {"mem_len": 1})],
)
def test_sixteen_requests_are_answered_as_one_by_one(tmp_path: Path, model_type: str, fields: dict):
    model = saved_model(tmp_path, model_type, **fields)
    requests = some_requests(seed=5)
    with engine(tmp_path) as llm:
        answers = greedy(llm, requests)
        assert answers == [alone(model, *request) for request in requests]
        assert greedy(llm, requests[::-1]) == answers[::-1]  # slots that others have used


def test_probabilities_of_a_prompt(tmp_path: Path):
    model = saved_model(tmp_path, "transformer_xl")
    prompt = some_requests(seed=6)[0][0] + [3, 1, 4] * 10
    with engine(tmp_path) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    given = [each[token].logprob for each, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)]
    with torch.no_grad():
        wanted = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    torch.testing.assert_close(torch.tensor(given), wanted.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_model_that_cannot_run_is_refused(tmp_path: Path, model_type: str):
    saved_model(tmp_path, model_type)
    with pytest.raises(ValueError, match=f"A {model_type} model"), engine(tmp_path):
        pass


def test_weights_that_do_not_fit_are_refused(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    saved_model(tmp_path, "transformer_xl")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with (
        pytest.raises(ValueError, match=r"missing_keys \['model.layers.1.self_attn.q_proj.weight'\]"),
        engine(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"enable_prefix_caching": True}, "enable_prefix_caching"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
    ],
)
def test_what_a_memory_cannot_do_is_refused(tmp_path: Path, options: dict, setting: str):
    saved_model(tmp_path, "transformer_xl")
    message = f"`{setting}` cannot be used with a model of transformers-xl"
    with pytest.raises(ValueError, match=message), engine(tmp_path, **options):
        pass


def test_every_refused_setting_is_named():
    from transformers_xl.serve.vllm_settings import refused_settings

    plain = {
        "parallel_config": SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        "cache_config": SimpleNamespace(enable_prefix_caching=False),
        "model_config": SimpleNamespace(quantization=None),
        **dict.fromkeys(("speculative_config", "lora_config", "kv_transfer_config")),
    }
    assert refused_settings(SimpleNamespace(**plain)) == []
    asked = plain | {
        "parallel_config": SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=2),
        "model_config": SimpleNamespace(quantization="awq"),
        **dict.fromkeys(("speculative_config", "lora_config", "kv_transfer_config"), object()),
    }
    names = [name for name, _ in refused_settings(SimpleNamespace(**asked))]
    assert names == [
        "pipeline_parallel_size", "speculative_config", "enable_lora", "quantization", "kv_transfer_config",
    ]  # fmt: skip


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def server(folder: Path, port: int):
    """What `vllm serve FOLDER` runs, with an engine in a process of its own: the command itself asks for the version of a
    package `vllm`, which `vllm-cpu` is not."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", str(port)]
    options = ["--host", "127.0.0.1", "--dtype", "float32", "--max-num-seqs", "8", "--served-model-name", "xl"]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_the_server_of_vllm_answers_the_openai_client(tmp_path: Path):
    openai = needs("openai")
    import transformers_xl

    model = saved_model(tmp_path, "transformer_xl", vocab_size=256)
    transformers_xl.ByteTokenizer().save_pretrained(tmp_path)
    port, prompt, deadline = free_port(), "The memory of a text", time.monotonic() + PATIENCE
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    with server(tmp_path, port) as process:
        while True:
            try:
                assert [each.id for each in client.models.list()] == ["xl"]
                break
            except openai.APIConnectionError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.5)
        answer = client.completions.create(
            model="xl", prompt=prompt, max_tokens=30, temperature=0, logprobs=0, extra_body={"return_token_ids": True}
        )
    assert answer.choices[0].token_ids == alone(model, list(prompt.encode()), 30)
