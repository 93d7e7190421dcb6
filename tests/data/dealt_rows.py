"""Run by two processes: the rows of a stream that Accelerate hands to each, as JSON, one file for each process."""

import json
import sys
from pathlib import Path

from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from transformers_xl.data.streaming_text import StreamingText

DOCUMENTS = [[1000 * index + place for place in range(length)] for index, length in enumerate([9, 31, 4, 17, 2, 25])]

if __name__ == "__main__":
    rows = {}
    for dispatch in (None, True, False):  # None is Accelerate's default
        config = DataLoaderConfiguration(dispatch_batches=dispatch)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        stream = StreamingText(DOCUMENTS, segment_length=3, lanes=4, keep_tail=True)
        loader = accelerator.prepare(DataLoader(stream, batch_size=4 // accelerator.num_processes))
        rows[str(dispatch)] = [{name: column.int().tolist() for name, column in batch.items()} for batch in loader]
    Path(sys.argv[1], f"{accelerator.process_index}.json").write_text(json.dumps(rows))
    accelerator.end_training()
