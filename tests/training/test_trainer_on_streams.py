"""MemoryTrainer on documents and on a stream that is read as it is needed: the loop by hand, document by document."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import set_seed

from transformers_xl import MemoryTrainer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.streaming_text import StreamingText
from transformers_xl.training.trainer import MemoryTrainingArguments

SEGMENT, LANES, VOCAB = 4, 2, 23
LENGTHS = [9, 4, 1, 6, 11]


def documents() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, VOCAB, length) for length in LENGTHS]


def small_model() -> TransformerXLForCausalLM:
    set_seed(0)
    return TransformerXLForCausalLM(
        TransformerXLConfig(
            vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, mem_len=8,
            dropout=0.0,
        )
    )  # fmt: skip


def by_hand(model: TransformerXLForCausalLM, lanes: list[list[int]], steps: int) -> None:
    """SGD on the mean loss of each step's tokens; `lanes` says which documents each lane reads. Nothing is padded."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    texts = [torch.from_numpy(row) for row in documents()]
    places = [[(index, start) for index in lane for start in range(0, LENGTHS[index], SEGMENT)] for lane in lanes]
    memories: list[dict] = [{} for _ in lanes]
    for step in range(steps):
        sums, tokens = 0.0, 0
        for lane, memory in zip(places, memories, strict=True):
            index, start = lane[step]
            if start == 0:
                memory.clear()
            outputs = model(texts[index][None, start : start + SEGMENT], **memory)
            memory["mems"] = outputs.mems
            targets = texts[index][start + 1 : start + 1 + SEGMENT]
            sums = sums + F.cross_entropy(outputs.logits[0, : len(targets)], targets, reduction="sum")
            tokens += len(targets)
        (sums / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("kind", ["documents", "streaming"])
def test_training_is_the_loop_by_hand(tmp_path, kind: str):
    if kind == "documents":
        stream = DocumentStream(documents(), SEGMENT, LANES)
        lanes, steps = stream.lane_documents, stream.segments
    else:
        stream = StreamingText(documents(), SEGMENT, LANES)
        lanes, steps = [[0, 4], [1, 2, 3]], 4  # the next document goes to the lane that has ended
    arguments = MemoryTrainingArguments(
        str(tmp_path), max_steps=steps, per_device_train_batch_size=LANES, learning_rate=0.05, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none", save_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False, use_cpu=True,
    )  # fmt: skip
    trained, expected = small_model(), small_model()
    MemoryTrainer(trained, arguments, train_dataset=stream).train()
    by_hand(expected, lanes, steps)
    for ours, theirs in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("memory", [True, False])
def test_texts_begin_where_the_model_remembers_nothing(tmp_path, memory: bool):
    arguments = MemoryTrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=LANES, report_to="none", save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False, use_cpu=True,
    )  # fmt: skip
    config = small_model().config
    fields = {} if memory else {"mem_len": 0, "same_length": False}
    model = TransformerXLForCausalLM(TransformerXLConfig.from_dict(config.to_dict() | fields))
    for stream_class in (DocumentStream, StreamingText):
        right, wrong = (
            stream_class(documents() * 2, SEGMENT, LANES, beginning=[1], memory=each) for each in (memory, not memory)
        )
        MemoryTrainer(model, arguments, train_dataset=right).train()
        with pytest.raises(
            ValueError, match=f"`train_dataset` was made with `memory`={not memory}, but the model has"
        ):
            MemoryTrainer(model, arguments, train_dataset=wrong).train()
