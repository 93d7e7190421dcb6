"""An agent that was trained here, on the Hub: what its card says, and that it acts the same without this package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from optional_packages import needs
from safetensors.torch import load_file, save_file

from transformers_xl import AutoModelForActorCritic, GTrXLConfig, GTrXLForActorCritic

REPO, WIDTH, STEPS = "owner/agent", 4, 9
ACT = """
import sys
sys.modules["transformers_xl"] = None  # importing it fails from here on
import torch, transformers
from safetensors.torch import load_file, save_file
agent = transformers.AutoModel.from_pretrained("owner/agent", trust_remote_code=True)
assert type(agent).__module__.startswith("transformers_modules."), type(agent)
given, past, logits, values = load_file("given.safetensors"), None, [], []
with torch.no_grad():
    for observation, reset in zip(given["observations"].unbind(1), given["reset"].unbind(1), strict=True):
        out = agent(observation[:, None], reset=reset, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits.append(out.logits)
        values.append(out.value)
logits = torch.cat(logits, 1)
actions = agent.distribution(logits).mode
save_file({"logits": logits, "values": torch.cat(values, 1), "actions": actions}, "acted.safetensors")
"""


def trained() -> GTrXLForActorCritic:
    """An agent after two updates of PPO on corridors of five steps."""
    needs("gymnasium")
    sys.path.append(str(Path(__file__).parents[2] / "examples/agents"))
    import ppo
    from t_maze import CueTask

    torch.manual_seed(0)
    config = GTrXLConfig(
        observation_size=CueTask.observation_space, num_actions=CueTask.action_space, hidden_size=16,
        num_hidden_layers=2, num_attention_heads=2, mem_len=6, initializer_range=0.15,
    )  # fmt: skip
    agent = GTrXLForActorCritic(config)
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    environments = ppo.vector(lambda: CueTask(4, 5), 4)
    for _ in ppo.learn(agent, environments, 0, ppo.Settings(updates=2, window=8)):
        pass
    assert all(not torch.equal(value, before[name]) for name, value in agent.named_parameters())
    return agent.eval()


@pytest.mark.slow
def test_a_trained_agent_is_pushed_and_acts_the_same_without_the_package(hub, tmp_path: Path):
    agent = trained()
    agent.push_to_hub(REPO)
    card = ModelCard(hub.files(REPO)["README.md"].decode())
    assert card.data.pipeline_tag == "reinforcement-learning"
    assert f'`AutoModel.from_pretrained("{REPO}", trust_remote_code=True)`' in card.text
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1], names)
    assert type(names["agent"]) is GTrXLForActorCritic

    random = np.random.default_rng(0)
    given = {
        "observations": torch.tensor(random.normal(size=(3, STEPS, WIDTH)), dtype=torch.float32),
        "reset": torch.tensor(random.random((3, STEPS)) < 0.2),
    }
    save_file(given, tmp_path / "given.safetensors")
    with torch.no_grad():
        expected = agent(**given)
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-I", "-c", ACT]
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    acted = load_file(tmp_path / "acted.safetensors")
    torch.testing.assert_close(acted["logits"], expected.logits)
    torch.testing.assert_close(acted["values"], expected.value)
    assert torch.equal(acted["actions"], agent.distribution(expected.logits).mode)
    assert type(AutoModelForActorCritic.from_pretrained(REPO)) is GTrXLForActorCritic
