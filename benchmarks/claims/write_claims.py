"""Draw the results of all claims, and write the table and the sections of docs/claims.md from them.

    python benchmarks/claims/write_claims.py

`tests/claims/test_claims.py` checks that the page is what this writes.
"""

import importlib
import json
import re
import textwrap

from claim_runs import RESULTS, ROOT, Claim, Verdict, outcome
from run_all import ORDER

PAGE = ROOT / "docs" / "claims.md"
PART = re.compile(r"(<!-- claims: .*? -->\n).*?(<!-- end of claims -->)", flags=re.DOTALL)


def claims() -> dict[str, tuple[Claim, str]]:
    """Each claim and the docstring of its file, by name."""
    modules = {name: importlib.import_module(name) for name in ORDER}
    return {name: (module.CLAIM, " ".join((module.__doc__ or "").split())) for name, module in modules.items()}


_DECIDED: dict[str, Verdict | None] = {}  # an interval takes seconds, and the page asks for it several times


def decided(claim: Claim) -> Verdict | None:
    """What the results say."""
    if claim.name not in _DECIDED:
        _DECIDED[claim.name] = claim.decide(RESULTS)
    return _DECIDED[claim.name]


def seeds(claim: Claim) -> str:
    """How many seeds of how many there are: the fewest of any run."""
    found = min(len(rows) for rows in claim.read(RESULTS).values())
    return f"{found}" if found >= claim.seeds else f"{found} of {claim.seeds}"


def machine(claim: Claim) -> str:
    result = json.loads((RESULTS / f"{claim.name}.json").read_text(encoding="utf-8"))
    where = result["machine"]
    return f"{where['processor']}, {where['threads']} thread, torch {where['torch']}; text: {result['text']['name']}."


def shown(claim: Claim) -> str:
    """The outcome, and whether seeds are missing."""
    found = outcome(decided(claim))
    return f"{found} so far" if "of" in seeds(claim) and decided(claim) else found


def anchor(claim: Claim) -> str:
    """Of its heading."""
    return re.sub(r"[^\w -]", "", claim.says.lower()).replace(" ", "-")


def row(claim: Claim) -> str:
    verdict = decided(claim)
    numbers = verdict.numbers if verdict else ""
    cells = [f"[{claim.says}](#{anchor(claim)})", shown(claim), numbers, seeds(claim), f"`{claim.name}.py`"]
    return f"| {' | '.join(cells)} |"


def source(files: list[str], command: str, **numbers: str) -> str:
    """The comment from which `tests/test_evidence.py` knows where the numbers below it come from."""
    named = " ".join(f"benchmarks/results/{file}" for file in files)
    lines = [f"source: {named}", f"command: python {command}"]
    lines += [f"{name.replace('_', ' ')}: {found}" for name, found in numbers.items() if found]
    return "<!-- " + "\n     ".join(lines) + " -->"


def section(claim: Claim, text: str) -> str:
    verdict = decided(claim)
    parts = [f"{claim.source}.", text, f"**Held if** {claim.held_if}."]
    parts.append(f"**{shown(claim).capitalize()}.**" + (f" {machine(claim)}" if verdict else ""))
    if claim.no_power and verdict is not None and verdict.held is None:
        parts.append(f"**No power.** {claim.no_power}")
    parts.append(f"**Left open.** {claim.beyond}")
    files = [f"{name}.json" for name in (f"claims/{claim.name}", *claim.also)]
    command = f"benchmarks/claims/{claim.name}.py --report"
    lines = [f"### {claim.says}", ""]
    if verdict is not None:
        lines += [source(files, command, given=claim.given, worked_out=claim.worked_out), ""]
    for part in parts:
        lines += [textwrap.fill(part, 130, break_long_words=False, break_on_hyphens=False), ""]
    if verdict is not None and claim.draw is not None:
        lines += [f"![{claim.says}](../benchmarks/results/claims/{claim.name}.png)", ""]
    return "\n".join(lines)


def page() -> str:
    """The page, with this part of it written anew."""
    found = claims()
    lines = [
        source(
            ["claims"],
            "benchmarks/claims/write_claims.py",
            given="0.001 0.003 0.01 0.03 0.1",
            worked_out="1013",
        ),
        "",
        "| claim | | numbers | seeds | `python benchmarks/claims/...` |",
        "|---|---|---|---:|---|",
        *(row(claim) for claim, _ in found.values()),
        "",
    ]
    lines += [section(claim, text) for claim, text in found.values()]
    return PART.sub(
        lambda match: f"{match[1]}\n" + "\n".join(lines) + f"\n{match[2]}", PAGE.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    for each, _ in claims().values():
        each.report(RESULTS)
    PAGE.write_text(page(), encoding="utf-8")
