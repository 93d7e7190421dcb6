"""What threads cost that wait by spinning: steps of a small training beside other programs, by the policy of OpenMP.

    python benchmarks/bench_waiting.py --busy 0 --busy 6

Each training is a process of its own (OpenMP reads its policy once), beside as many programs that never rest. They go on
for a minute or more: not on a machine that others use.
"""

import argparse
import os
import platform
import subprocess
import sys
import time

POLICIES = {"default": None, "active": "ACTIVE", "passive": "PASSIVE"}
BUSY = "while True: pass"
TRAINING = """
import sys, time, torch
from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
torch.manual_seed(0)
config = TransformerXLConfig(vocab_size=259, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                             intermediate_size=512, mem_len=64, dropout=0.0)
model, mems = TransformerXLForCausalLM(config), None
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(256, (32, 16 * (int(sys.argv[1]) + 1)))
for step, segment in enumerate(ids.split(16, dim=1)):
    if step == 1:  # the first one is not counted
        wall, spent = time.perf_counter(), time.process_time()
    output = model(segment, labels=segment, mems=mems)
    mems = output.mems
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()
print(time.perf_counter() - wall, time.process_time() - spent, torch.get_num_threads())
"""


def train(policy: str | None, steps: int) -> list[float]:
    """Seconds of the clock, of the processor, and the number of threads."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    }
    environment |= {} if policy is None else {"OMP_WAIT_POLICY": policy}
    command = [sys.executable, "-c", TRAINING, str(steps)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(number) for number in ran.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, action="append", help="programs that never rest beside the training")
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {given.steps} steps")
    print("| busy programs | policy | threads | seconds | of the processor | load |\n|---:|---|---:|---:|---:|---:|")
    for count in given.busy or [0]:
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
        try:
            time.sleep(1)
            for name, policy in POLICIES.items():
                wall, spent, threads = train(policy, given.steps)
                load = os.getloadavg()[0]
                print(f"| {count} | {name} | {threads:.0f} | {wall:.1f} | {spent:.1f} | {load:.1f} |", flush=True)
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    main()
