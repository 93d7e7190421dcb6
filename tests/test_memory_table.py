"""The table of `docs/memory.md`: it is what the code gives, and what it says is so."""

import re
from pathlib import Path

import pytest
import torch
from tiny import (
    SEGMENT_BY_SEGMENT,
    keeps_blocks,
    models,
    result_of,
    tensors_of,
    tiny_model,
    tokens,
    variants,
)

from transformers_xl.configuration.configuration_memorizing_transformer import MemorizingTransformerConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.auto import VARIANTS

PAGE = Path(__file__).parent.parent / "docs" / "memory.md"
TABLE = re.compile(r"(<!-- table of memories: .*? -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
OWN = [name for name, row in VARIANTS.items() if issubclass(row.config_class, MemoryConfig)]


def bytes_of_a_row(model) -> int:
    """Of `mems`, at most, for numbers of float32."""
    config, memory = (
        model.config,
        model.new_memory(1, torch.empty(0, device=next(model.parameters()).device), static=True),
    )
    opened = getattr(config, "compression_rate", 1) - 1  # of a block that is not yet whole
    looked_up = 0
    if isinstance(config, MemorizingTransformerConfig):
        looked_up = config.num_memory_keys + config.block_length - 1
    more = [(layer.columns, opened) for layer in memory.layers] + [(layer.older, looked_up) for layer in memory.layers]
    rest = sum(each.new_empty(*each.shape[:-2], n, each.shape[-1]).nbytes for tensors, n in more for each in tensors)
    return rest + sum(each.nbytes for each in memory.named_tensors().values())


def seen_by(model, layer_idx: int) -> int:
    """Positions that a layer sees, its own included."""
    return model.config.layer_reaches[layer_idx]


def horizon(model) -> int:
    """How far back a token can be that changes an output, at most."""
    return sum(reach - 1 for reach in model.config.layer_reaches)


def row_of(model_type: str) -> str:
    row, config = VARIANTS[model_type], VARIANTS[model_type].config_class()
    with torch.device("meta"):
        model = row.model_class(config)
    seen = f"{max(seen_by(model, index) for index in range(config.num_hidden_layers)):,}"
    reach = "none" if row.recurrent else f"{horizon(model):,}"
    if row.memory == "none":
        windows = getattr(config, "windows", None)  # of an encoder
        seen = f"{max(windows) + 1:,} and the global ones" if windows else f"{config.segment_length:,}"
        reach = "its segment"
    elif not row.causal:
        seen, reach = "all of its segment", "none"
    through = " (in a call: through `bptt_segments`)" if hasattr(config, "bptt_segments") else ""
    cells = (
        f"`{model_type}`",
        {"exact": "yes", "own": "own", "none": "no memory"}[row.memory],
        seen,
        reach,
        "yes" if row.croppable and row.memory != "none" else "no",
        "-" if row.memory == "none" else f"end with a call{through}",
        f"{bytes_of_a_row(model) / 2**20:.3g}" if row.memory != "none" else "0",
    )
    return f"| {' | '.join(cells)} |"


def table_of_memories() -> str:
    header = "| `model_type` | exact | a layer sees | horizon, tokens | cropped | gradients | MiB of a row |"
    return "\n".join([header, "|---|---|---:|---:|---|---|---:|", *map(row_of, OWN)]) + "\n"


def test_the_table_is_that_of_the_code(request: pytest.FixtureRequest):
    text = PAGE.read_text(encoding="utf-8")
    expected = TABLE.sub(lambda match: match[1] + table_of_memories() + match[2], text)
    if request.config.getoption("--write-readme"):
        PAGE.write_text(expected, encoding="utf-8")
    else:
        assert text == expected, "run `python -m pytest tests/test_memory_table.py --write-readme`"


@pytest.mark.parametrize("model_type", variants(memory=("exact",), recurrent=False))
def test_the_horizon_is_the_farthest_token_that_arrives(model_type: str):
    model = tiny_model(model_type)

    def arrives(distance: int, length: int) -> bool:
        ids = tokens(1, length)
        changed = ids.clone()
        changed[0, length - 1 - distance] = (ids[0, length - 1 - distance] + 1) % 37
        with torch.no_grad():
            last, other = (result_of(model(text))[0, -1] for text in (ids, changed))
        return not last.equal(other)

    far = horizon(model)
    lengths = range(far + 2, far + 6)  # with open blocks of several lengths
    assert any(arrives(far, length) for length in lengths)
    assert not any(arrives(far + 1, length) for length in lengths)


@pytest.mark.parametrize("model_type", models(recurrent=True))
def test_a_state_brings_what_no_window_holds(model_type: str):
    model = tiny_model(model_type)
    ids = tokens(1, 40)  # twice as far as two windows
    changed = ids.clone()
    changed[0, :4] = (ids[0, :4] + 1) % 37
    with torch.no_grad():
        last, other = (result_of(model(text))[0, -1] for text in (ids, changed))
    assert not last.equal(other)


@pytest.mark.parametrize("model_type", [name for name in OWN if VARIANTS[name].memory != "none"])
def test_a_row_is_as_large_as_the_table_says(model_type: str):
    model, largest = tiny_model(model_type, dtype=torch.float32), 0
    with torch.no_grad():
        for length in (40, 41, 43):  # open blocks of several lengths
            mems = model(tokens(1, length)).mems
            largest = max(largest, sum(each.nbytes for each in tensors_of(mems)))
    promised = bytes_of_a_row(model)
    assert largest <= promised
    assert largest == promised or keeps_blocks(model_type) or model_type in SEGMENT_BY_SEGMENT
