"""Many processes: by Accelerate's dealing of batches every lane stays on its process and row, however many they are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from forked import run_processes
from torch.utils.data import DataLoader

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.streaming_text import StreamingText
from transformers_xl.data.text_stream import TextStream

LANES, SEGMENT = 4, 3
DOCUMENTS = [1000 * index + np.arange(length) for index, length in enumerate([9, 31, 4, 17, 2, 25, 11, 8])]
STREAMS = {
    "text": lambda: TextStream(np.arange(100), SEGMENT, LANES),
    "text, to its end": lambda: TextStream(np.arange(101), SEGMENT, LANES, keep_tail=True),
    "documents": lambda: DocumentStream(DOCUMENTS, SEGMENT, LANES),
    "documents, to their ends": lambda: DocumentStream(DOCUMENTS, SEGMENT, LANES, keep_tail=True),
    "streaming": lambda: StreamingText(DOCUMENTS, SEGMENT, LANES),
    "streaming, to its end": lambda: StreamingText(DOCUMENTS, SEGMENT, LANES, keep_tail=True),
    "streaming, endless": lambda: StreamingText(DOCUMENTS, SEGMENT, LANES, documents=False),
}


def batches_of_a_rank(stream, rank: int, processes: int, skip: int = 0) -> list[dict[str, torch.Tensor]]:
    """What one of the processes gets, from the loader that `Accelerator.prepare` makes there."""
    loader = DataLoader(stream, batch_size=LANES // processes)
    loader = prepare_data_loader(loader, num_processes=processes, process_index=rank, dispatch_batches=False)
    return list(skip_first_batches(loader, skip) if skip else loader)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_lane_stays_on_its_process_and_row(name: str, processes: int):
    expected = list(DataLoader(STREAMS[name](), batch_size=LANES))
    assert len(expected) > 3
    rows = LANES // processes
    for rank in range(processes):
        batches = batches_of_a_rank(STREAMS[name](), rank, processes)
        assert len(batches) == len(expected)  # no rank runs out before another
        for ours, whole in zip(batches, expected, strict=True):
            for column, values in whole.items():
                assert torch.equal(ours[column], values[rank * rows : (rank + 1) * rows]), column


@pytest.mark.parametrize("name", ["text", "documents", "streaming"])
def test_a_skipped_beginning_is_the_same_batches_later(name: str):
    for rank in range(2):
        whole = batches_of_a_rank(STREAMS[name](), rank, 2)
        rest = batches_of_a_rank(STREAMS[name](), rank, 2, skip=3)
        assert [batch["input_ids"].tolist() for batch in rest] == [batch["input_ids"].tolist() for batch in whole[3:]]


def test_a_random_order_would_tear_lanes_apart():
    """The tests above could not fail if rows did not depend on the order."""
    stream = STREAMS["text"]()
    loader = DataLoader(stream, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0))
    loader = prepare_data_loader(loader, num_processes=2, process_index=0)
    expected = [batch["input_ids"].tolist() for batch in batches_of_a_rank(stream, 0, 2)]
    assert [batch["input_ids"].tolist() for batch in loader] != expected


def test_the_position_of_a_stream_that_accelerate_has_read_ahead():
    """Accelerate's loader is one batch further than the loop: the position is asked for by the steps that were used."""
    expected = [batch["input_ids"].tolist() for batch in batches_of_a_rank(STREAMS["streaming"](), 1, 2)]
    stream = STREAMS["streaming"]()
    loader = DataLoader(stream, batch_size=2)
    loader = prepare_data_loader(loader, num_processes=2, process_index=1, dispatch_batches=False)
    for step, _ in enumerate(loader, 1):
        if step == 4:
            ahead, used = stream.state_dict(), stream.state_dict(step=4)
            break
    assert ahead["step"] == 5
    again = STREAMS["streaming"]()
    again.load_state_dict(used)
    assert [batch["input_ids"].tolist() for batch in batches_of_a_rank(again, 1, 2)] == expected[4:]


def test_two_processes_get_the_rows_of_their_lanes(tmp_path: Path):
    """In earnest, by both of Accelerate's ways to deal a stream: the first process hands out, or each reads all."""
    script = Path(__file__).with_name("dealt_rows.py")
    result = run_processes(script, tmp_path)
    assert result.succeeded, result.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    whole = list(DataLoader(StreamingText(DOCUMENTS[:6], 3, 4, keep_tail=True), batch_size=4))
    for rank, ways in enumerate(found):
        for way, batches in ways.items():
            assert len(batches) == len(whole), way
            for ours, expected in zip(batches, whole, strict=True):
                for name, column in expected.items():
                    assert ours[name] == column[2 * rank : 2 * rank + 2].int().tolist(), (way, name)
