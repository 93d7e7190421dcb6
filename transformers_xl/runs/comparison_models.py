"""The models of a comparison: each language model of this package and each baseline, at equal parameters."""

import inspect
from functools import cache
from typing import Any, get_type_hints

from transformers import PreTrainedModel

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.nearest_names import nearest_names
from transformers_xl.evaluation.context_curve import remembers
from transformers_xl.evaluation.context_losses import longest_window
from transformers_xl.modeling.auto import Variant
from transformers_xl.runs.baselines import BASELINES
from transformers_xl.runs.comparison_plan import DEFAULT, SCALED, ComparisonPlan
from transformers_xl.runs.comparison_reading import BlockReading, MemoryReading, Reading, StateReading
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.comparison_texts import comparison_tokenizer
from transformers_xl.runs.fitting import build_model, prepare_for_inference, token_fields
from transformers_xl.runs.loading import import_models

TOLERANCE = 0.03  # of the parameters
# fields of a variant beside the shared ones: a memory of about the size of the feed-forward that it stands for; one head,
# as the authors' code has, where every head would add a map of all pairs of positions
FIELDS: dict[str, dict[str, Any]] = {
    # several blocks in a segment of training: a write learns from later tokens of the call alone
    "block_recurrent": {"block_length": 16, "num_states": 16},
    "infini_transformer": {"mem_len": 16},
    "memorizing_transformer": {"block_length": 16, "num_memory_keys": 1024, "num_retrieved": 8},
    "pkm_transformer": {"num_memory_keys": 32, "memory_topk": 16},
    "recurrent_memory_transformer": {"segment_length": 16},
    "tensorized_transformer": {"num_attention_heads": 1},
}
# fields of configs that the plan says for all models, under its own names
OF_PLAN = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "layers",
    "intermediate_size": "parameters",
    "dropout": "dropout",
}
# where weights of a type start from, if not from `initializer_range`: those of torch's LSTM have a start of their own
START_FIELDS = {"lstm": "embedding_initializer_range"}
REGISTERED: dict[str, Variant] = {}  # beside those of this package


def register_variant(name: str, variant: Variant) -> None:
    """Let plans name a model that is no variant of this package, such as one with a part exchanged. Runs are processes that
    import the script which was started: call this where that script is imported.

    Raises:
        ValueError: the name is taken.
    """
    if name in REGISTERED or name in known_types():
        raise ValueError(f"`name`={name!r} is a model of comparisons already: choose another.")
    REGISTERED[name] = variant


def _variants() -> dict[str, Variant]:
    """The variants of this package, and those that were registered."""
    return import_models() | REGISTERED


def known_types() -> list[str]:
    """The types of the models that can be compared: variants that are made from nothing, and the baselines."""
    rows = {name: row for name, row in _variants().items() if row.causal_lm_class is not None}
    return sorted(
        {name for name, row in rows.items() if issubclass(row.config_class, MemoryConfig)} | BASELINES.keys()
    )


class ComparedModel:
    """A model of a plan.

    Raises:
        ValueError: its type or a field of it is not known, it cannot read in the way that the plan says, or it comes no
            nearer than 3 % to the parameters.

    Attributes:
        width: inner width of the feed-forward with which it has as many parameters as the others.
        parameters: how many it has.
        starts: standard deviations that its weights may start from; no two are the same.
    """

    def __init__(self, name: str, plan: ComparisonPlan):
        self.name, self.plan, self.entry = name, plan, plan.models[name]
        self.type = self.entry.type or name
        if self.type not in known_types():
            raise ValueError(
                f"`models.{name}.type`={self.type!r} is not a language model of this comparison: known are "
                f"{', '.join(known_types())}."
            )
        self._check_fields()
        self.width, self.parameters = self._width()
        self.reading = self._reading()
        default = getattr(self._build(0, self.width).config, self._start_field)
        named = {SCALED: (0.4 / plan.hidden_size) ** 0.5, DEFAULT: default}
        starts = (float(named.get(start, start)) for start in plan.search.starts)  # type: ignore[arg-type]
        self.starts = list(dict.fromkeys(float(f"{start:.6g}") for start in starts))

    def _check_fields(self) -> None:
        """Refuse fields that the config does not have, and sizes that are those of the plan."""
        row = _variants().get(self.type)
        config: Any = get_type_hints(BASELINES[self.type])["return"].config_class if row is None else row.config_class
        for name, value in self.entry.fields.items():
            where, field = f"`models.{self.name}.fields.{name}`={value!r}", config.attribute_map.get(name, name)
            if {name, field} & OF_PLAN.keys():
                raise ValueError(
                    f"{where} is the same for all models: set it in the plan ({', '.join(OF_PLAN.values())})."
                )
            if field not in config.__dataclass_fields__:
                near = nearest_names(name, config.__dataclass_fields__, cutoff=0.6)
                raise ValueError(f"{where} is no field of {config.__name__}: nearest is {', '.join(near) or 'none'}.")

    def build(self, seed: int, start: float) -> PreTrainedModel:
        """The model with weights from a seed."""
        return self._build(seed, self.width, **{self._start_field: start})

    @property
    def _start_field(self) -> str:
        return START_FIELDS.get(self.type, "initializer_range")

    def _build(self, seed: int, width: int, **more: Any) -> PreTrainedModel:
        tokens = token_fields(comparison_tokenizer(self.plan.tokenizer))
        fields = tokens | FIELDS.get(self.type, {}) | more | self.entry.fields
        if self.type in BASELINES:
            return BASELINES[self.type](self._terms, seed, width, **fields)
        return build_model(_variants()[self.type], self._terms, seed, width, **fields)

    @property
    def _terms(self) -> ComparisonTerms:
        """Sizes, as builders take them: the segment is what the model reads at once."""
        plan = self.plan
        return ComparisonTerms(
            hidden_size=plan.hidden_size,
            layers=plan.layers,
            heads=plan.heads,
            mem_len=self._mem_len,
            dropout=plan.dropout,
            segment_length=self._block,
        )

    @property
    def _mem_len(self) -> int:
        return self.plan.mem_len if self.entry.mem_len is None else self.entry.mem_len

    @property
    def _block(self) -> int:
        """What it reads at once: a segment, or a block where it carries nothing."""
        row = _variants().get(self.type)
        has_memory = row.memory != "none" and self._mem_len > 0 if row is not None else self.type == "lstm"
        if has_memory or self.entry.carry:
            if self.entry.block is not None:
                raise ValueError(
                    f"`models.{self.name}.block`={self.entry.block} is for models without memory, and {self.type} carries "
                    "one: leave it out, or set `mem_len` to 0."
                )
            return self.plan.segment_length
        block = self.plan.segment_length + self.plan.mem_len if self.entry.block is None else self.entry.block
        if block % self.plan.segment_length:
            raise ValueError(
                f"`models.{self.name}.block` is not given, and {block}, a segment and the memory, is no multiple of "
                f"`segment_length`={self.plan.segment_length}: give a multiple."
            )
        return block

    def _reading(self) -> Reading:
        model, segment = self._build(0, self.width), self.plan.segment_length
        if self.entry.carry:
            if "cache_params" not in inspect.signature(model.forward).parameters:
                raise ValueError(
                    f"`models.{self.name}.carry`=True is for recurrent models of transformers, such as mamba2: {self.type} "
                    "has no such state, leave it out."
                )
            return StateReading(segment, segment)
        if remembers(model) and longest_window(model) is None:
            return MemoryReading(segment, segment)
        return BlockReading(self._block, segment)

    def _width(self) -> tuple[int, int]:
        """The inner width with which it has as many parameters as the others, and how many: by secants, from the model's
        width and twice as much.

        The first is exact where parameters grow linearly, which they do in all models but the LSTM.
        """
        target = target_parameters(self.plan)
        last, other = 2 * self.plan.hidden_size, self.plan.hidden_size
        parameters, before = self._count(last), self._count(other)
        for _ in range(5):
            slope = (parameters - before) / (last - other)
            # even, because a complex one has real and imaginary parts; eighths are Mamba-2's columns of state
            unit = 8 if self.type == "mamba2" else 2
            following = max(unit, unit * round((last + (target - parameters) / slope) / unit))
            if following == last:
                break
            (last, other), (parameters, before) = (following, last), (self._count(following), parameters)
            if abs(parameters / target - 1) <= TOLERANCE / 10:
                break
        if abs(parameters / target - 1) > TOLERANCE:
            raise ValueError(
                f"`hidden_size`={self.plan.hidden_size}: {self.name} has {parameters:,} parameters, more than "
                f"{100 * TOLERANCE:g} % from {target:,}: choose a larger width, or other `parameters`."
            )
        return last, parameters

    def _count(self, width: int) -> int:
        """Parameters, without what exists in training only."""
        model = self._build(0, width)
        prepare_for_inference(model)
        return model.num_parameters()


def target_parameters(plan: ComparisonPlan) -> int:
    """Parameters of each model."""
    if plan.parameters is not None:
        return plan.parameters
    vocab_size = len(comparison_tokenizer(plan.tokenizer))
    return _usual_parameters(plan.hidden_size, plan.layers, plan.heads, vocab_size)


@cache
def _usual_parameters(hidden_size: int, layers: int, heads: int, vocab_size: int) -> int:
    """Those of a Transformer-XL of the usual shape."""
    terms, row = ComparisonTerms(hidden_size, layers, heads), import_models()["transformer_xl"]
    return build_model(row, terms, 0, 4 * hidden_size, vocab_size=vocab_size).num_parameters()


__all__ = ["FIELDS", "TOLERANCE", "ComparedModel", "known_types", "register_variant", "target_parameters"]
