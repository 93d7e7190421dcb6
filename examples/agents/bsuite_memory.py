"""bsuite's `memory_len` as an environment of gymnasium: a bit is shown first and asked for `memory_length` steps later.

bsuite (https://arxiv.org/abs/1908.03568) knows dm_env and an old gym; what it shows and pays is left as it is:
`pip install '.[rl]'`, then `python examples/agents/ppo.py bsuite_memory:bsuite/memory_len-v0`.
"""

import gymnasium as gym
import numpy as np
from bsuite.environments.memory_chain import MemoryChain


class MemoryLength(gym.Env):
    """Observation: [share of the time that is left, question, bit]. The last action pays 1 or -1.

    `memory_length` may be set at any time; it counts from the next episode on.
    """

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, memory_length: int = 10):
        self.memory_length = memory_length

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.chain = MemoryChain(self.memory_length, seed=int(self.np_random.integers(2**31)))
        return self.chain.reset().observation[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        step = self.chain.step(int(action))
        return step.observation[0], float(step.reward), step.last(), False, {}


gym.register("bsuite/memory_len-v0", MemoryLength)
