"""The run of `transformers-xl train`: a byte-level model trained on text files, scored, and written with its card."""

from pathlib import Path
from typing import Any

from transformers_xl.evaluation.bits_per_byte import TextScore
from transformers_xl.evaluation.score_ways import score_ways
from transformers_xl.experiments.fitting import build_model, fit, processes, read_texts
from transformers_xl.experiments.recording import check_claims, evaluation_of, text_of_bytes
from transformers_xl.files.atomic_write import output_folder
from transformers_xl.hub.cards import write_card
from transformers_xl.hub.measurements import measurements_of, write_measurements
from transformers_xl.modeling.auto import Variant
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


class TrainingRun:
    """The texts and the model of a training that has not begun.

    Args:
        variant: a language model.
        texts: files to learn from.
        eval_text: held-out files; the end of `texts` where there are none.
        arguments: the options of the command, by name.

    Raises:
        ValueError: a text is too short, or the arguments do not go together.
    """

    def __init__(self, variant: Variant, texts: list[Path], eval_text: list[Path] | None, arguments: dict[str, Any]):
        self.texts, self.eval_text, self.arguments = texts, eval_text, arguments
        self.claims = check_claims(arguments["dataset"], arguments["dataset_revision"], arguments["task_id"])
        lanes, state = arguments["batch_size"], processes()
        if lanes % state.num_processes:
            raise ValueError(
                f"`batch_size`={lanes} lanes cannot be shared by {state.num_processes} processes: make it a multiple of "
                f"{state.num_processes}."
            )
        self.stream, self.held_out, self.eval_lanes = read_texts(texts, eval_text, arguments, state.is_main_process)
        self.model = build_model(variant, arguments)

    def train(self, output: Path, command: str) -> dict[str, TextScore]:
        """Train, and write the folder `output`: config, weights, tokenizer, measurements, card. The scores of the held-out
        text, by the way it was read. Of several processes, the main one alone scores and writes.

        Raises:
            ValueError: another command writes `output`.
        """
        if not processes().is_main_process:
            fit(self.model, self.stream, self.arguments, output)
            return {}
        with output_folder(output) as folder:
            trainer = fit(self.model, self.stream, self.arguments, folder)
            scores = score_ways(self.model, self.held_out, lanes=self.eval_lanes, progress=True)
            self.model.save_pretrained(folder)
            ByteTokenizer().save_pretrained(folder)
            self._record(folder, trainer, scores, command)
            write_card(folder, output.resolve().name)
        return scores

    def _record(self, folder: Path, trainer, scores: dict[str, TextScore], command: str) -> None:
        parts = ("", "") if self.eval_text else ("first", "last")
        read = text_of_bytes(self.texts, parts[0], self.stream.ids, (*self.claims[:2], None))
        unseen = text_of_bytes(self.eval_text or self.texts, parts[1], self.held_out, self.claims)
        training = trainer.training_record(data=read, command=command, arguments=self.arguments)
        evaluations = tuple(
            evaluation_of(self.model, score, unseen, self.eval_lanes, name == "with memory", command)
            for name, score in scores.items()
        )
        log = tuple(trainer.state.log_history)
        write_measurements(
            folder, measurements_of(self.model, folder, training=training, evaluations=evaluations, log=log)
        )


__all__ = ["TrainingRun"]
