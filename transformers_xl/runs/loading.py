"""A folder of a saved model, read by a command: what is damaged in it is named before anything large is allocated."""

import copy
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers_xl.files.blaming import blamed, sentence
from transformers_xl.files.bounded_calls import bounded
from transformers_xl.files.plain_files import check_folder

if TYPE_CHECKING:
    from transformers_xl.hub.adapter_folders import Adapter

# what transformers reads of a folder beside the weights
JSON_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "model.safetensors.index.json", "chat_template.json", "processor_config.json",
    "preprocessor_config.json",
)  # fmt: skip
MAX_INTEGER = 2**31 - 1
MAX_BEAMS = 1024  # rows that a file may ask for
TRANSLATOR = "memory_encoder_decoder"  # `model_type` of an encoder-decoder
PLAIN_SETTINGS = {"_from_model_config", "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"}


def import_models() -> dict:
    """The table of variants, registered with the Auto classes, as is the LSTM; and transformers told to be quiet."""
    from transformers.utils import logging

    from transformers_xl.modeling.auto import VARIANTS
    from transformers_xl.runs import baselines  # noqa: F401  registers it

    logging.disable_progress_bar()
    return VARIANTS


def is_translator(folder: Path) -> bool:
    """Whether a folder holds an encoder-decoder of this package."""
    from transformers_xl.files.json_files import read_json

    file = folder / "config.json"
    return file.is_file() and read_json(file).get("model_type") == TRANSLATOR


def load_model(folder: Path, any_kind: bool = False, encoders: bool = False) -> tuple:
    """The language model in a folder, as [`load_weights`] reads it, and its tokenizer.

    Raises:
        ValueError: the folder holds no such model, or a file in it is damaged.
        OSError: a file is missing in the folder.
    """
    return load_weights(folder, any_kind, encoders), load_tokenizer(folder)


def load_anywhere(model: str, device: str, dtype: str) -> tuple:
    """The language model in a folder or a repository of the Hub, and its tokenizer.

    Args:
        model: a folder, or the name of a repository.
        device: of torch; "auto": the GPU where there is one.
        dtype: of torch, such as "bfloat16"; "auto": as it was saved.

    Raises:
        ValueError: it is no such model, a file is damaged, or there is no such device or type.
        OSError: there is no such folder or repository, or a file is missing in it.
    """
    import torch
    from transformers import AutoTokenizer

    from transformers_xl.runs.onednn_linear import accelerate_linear_layers

    kind = None if dtype == "auto" else getattr(torch, dtype, None)
    if dtype != "auto" and (not isinstance(kind, torch.dtype) or not kind.is_floating_point):
        raise ValueError(f"`dtype`={dtype!r} must be auto, or a type of torch such as float32 or bfloat16.")
    place = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "auto":
        try:
            place = str(torch.empty(0, device=device).device)
        except (RuntimeError, AssertionError) as error:  # the latter: torch was built without CUDA
            raise ValueError(f"`device`={device!r} is not to be had: {sentence(error)}.") from error
    if Path(model).is_dir():
        loaded, tokenizer = load_model(Path(model))
    else:
        with without_code(model):
            loaded, tokenizer = _of_hub(model), AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    return accelerate_linear_layers(loaded.to(device=place, dtype=kind or loaded.dtype).eval()), tokenizer


def load_weights(folder: Path, any_kind: bool = False, encoders: bool = False):
    """The language model in a folder, on the GPU where there is one.

    `any_kind` also takes language models of transformers; `encoders` the base model of a variant that is none.

    Raises:
        ValueError: the folder holds no such model, or a file in it is damaged.
        OSError: a file is missing in the folder.
    """
    from transformers_xl.hub.adapter_folders import read_adapter

    check_folder(folder)
    if (adapter := read_adapter(folder)) is not None:
        return _load_adapted(folder, adapter)
    config = config_of(str(folder), any_kind)
    is_encoder = encoders and import_models()[config.model_type].causal_lm_class is None
    if not is_encoder:
        check_language_model(str(folder), config)
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, GenerationConfig

    from transformers_xl.runs.onednn_linear import accelerate_linear_layers

    settings = folder / "generation_config.json"
    if settings.is_file():
        with blamed(settings):
            GenerationConfig.from_pretrained(folder)
    auto_class = AutoModel if is_encoder else AutoModelForCausalLM
    files = check_weights(folder, config, auto_class)
    with blamed(folder):
        loaded: Any = auto_class.from_pretrained(
            folder, config=config, output_loading_info=True, trust_remote_code=False
        )
    model, info = loaded
    if info["missing_keys"]:
        name = min(info["missing_keys"])
        raise ValueError(f"{str(folder / 'config.json')!r} asks for the weight {name!r}, which no file there holds.")
    _check_finite(model, folder, files)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return accelerate_linear_layers(model.to(device=device).eval())


def _load_adapted(folder: Path, adapter: "Adapter"):
    """The base of `adapter` in float32, with the adapters in a folder merged into its weights."""
    import torch
    from peft import PeftModel

    from transformers_xl.hub.adapter_folders import ADAPTER, check_adapter, read_adapter

    base, shapes = Path(adapter.base), shapes_of(folder)
    for name, (file, _, dtype) in shapes.items():
        check_kind(file, name, dtype)
    if base.is_dir() and read_adapter(base) is not None:
        raise ValueError(f"{str(folder / ADAPTER)!r}: the base {adapter.base!r} holds adapters: name a whole model.")
    model = load_weights(base) if base.is_dir() else _of_hub(adapter.base)
    # in half precision, what adapters add to a weight would mostly be rounded away
    model = model.to(dtype=torch.promote_types(model.dtype, torch.float32))
    check_adapter(folder, [shape for _, shape, _ in shapes.values()], [name for name, _ in model.named_modules()])
    with blamed(folder):
        merged = PeftModel.from_pretrained(model, folder).merge_and_unload().eval()
    _check_finite(merged, folder, {})
    return merged


def _check_finite(model, folder: Path, files: dict[str, Path]) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"{str(files.get(name, folder))!r}: the weight {name!r} holds NaN or infinity.")


def check_generation(model, folder: Path) -> None:
    """Raise a `ValueError` where the settings in generation_config.json cannot generate: they are tried on one token."""
    import torch

    from transformers_xl.files.json_files import read_json

    file = folder / "generation_config.json"
    settings = read_json(file) if file.is_file() else {}
    for name in ("num_beams", "num_return_sequences"):
        if isinstance(settings.get(name), int) and settings[name] > MAX_BEAMS:
            raise ValueError(f"{str(file)!r}: `{name}`={settings[name]} must be at most {MAX_BEAMS}.")
    if settings.keys() - PLAIN_SETTINGS:
        with blamed(file):
            model.generate(torch.zeros((1, 1), dtype=torch.long, device=model.device), max_new_tokens=1)


def _of_hub(repo: str):
    from transformers import AutoModelForCausalLM

    config = config_of(repo)
    check_language_model(repo, config)
    return AutoModelForCausalLM.from_pretrained(repo, config=config, trust_remote_code=False)


def load_tokenizer(folder: Path, trust_remote_code: bool = False):
    """The tokenizer in a folder. `trust_remote_code`: it may bring code.

    Raises:
        ValueError: a file of it is damaged, or it brings code that is not trusted.
        OSError: it is missing.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    check_folder(folder)
    _check_files(folder)
    file = folder / "tokenizer.json"
    if file.is_file():
        with blamed(file):
            Tokenizer.from_file(str(file))
    with blamed(folder / "tokenizer_config.json"), without_code(str(folder)):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        tokenizer("")  # what its settings cannot do shows in its first use
        return tokenizer


@contextmanager
def without_code(name: str) -> Iterator[None]:
    """Make the error of transformers, which was not to ask whether code of `name` may run, one that says what to do."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{name!r} comes with custom code (`auto_map`), which commands that read a model do not run: `train` and "
            "`add-memory` run that of a base's tokenizer with --trust-remote-code; read it first."
        ) from error


@contextmanager
def to_be_had(field: str, name: str, remedy: str = "give a folder, or a repository of the Hub") -> Iterator[None]:
    """Make the error of a library that looks for `name` on the Hub a `ValueError` that names the field of a run."""
    try:
        yield
    except OSError as error:
        if Path(name).is_dir():
            raise
        said = textwrap.shorten(sentence(error), 300)
        raise ValueError(
            f"`{field}`={name!r} is not a local folder, and could not be loaded from the Hub: {remedy}. ({said})"
        ) from error


def config_of(model: str, any_kind: bool = False):
    """The config of a folder or repository: one of this package, or `any_kind`.

    Raises:
        ValueError: there is none, or a file is damaged.
        OSError: there is no such folder or repository.
    """
    variants = import_models()
    from transformers import AutoConfig

    folder = Path(model)
    if folder.is_dir():
        check_json(folder)
        check_inner_type(folder)
    with blamed(folder / "config.json"):
        _try_config(model)
        with without_code(model):
            config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    if not any_kind and config.model_type not in variants:
        raise ValueError(f"`model`={model!r} holds a {config.model_type!r}: known are {', '.join(variants)}.")
    return config


def _try_config(model: str) -> None:
    """Raise a `ValueError` where the config of a folder or repository takes more time or memory than that of any model:
    a number of labels, of layers, or of configs in configs can be any."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    described, _ = PreTrainedConfig.get_config_dict(model)
    implementation = described.get("_attn_implementation", described.get("attn_implementation"))
    if isinstance(implementation, str) and "/" in implementation:
        raise ValueError(f"`attn_implementation`={implementation!r} is code of a repository: remove it from the file.")
    if described.get("model_type") in list(CONFIG_MAPPING):
        config_class = CONFIG_MAPPING[described["model_type"]]

        def read() -> None:
            config_class.from_dict(described)

        bounded(read)


def base_config(model: str, trust_remote_code: bool = False):
    """The config of a language model to fine-tune, of this package or of others.

    Where it brings code, `trust_remote_code` has to say that this is known. For the model transformers' own code runs.

    Raises:
        ValueError: it brings code that is not trusted, or without which transformers cannot read it; or as [`config_of`].
    """
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    if Path(model).is_dir():
        check_json(Path(model))
    with to_be_had("model.base", model):
        described, _ = PreTrainedConfig.get_config_dict(model)
    model_type = described.get("model_type")
    if model_type not in (*import_models(), TRANSLATOR) and described.get("auto_map"):
        if not trust_remote_code:
            raise ValueError(
                f"`model.base`={model!r} comes with custom code (`auto_map`): read it, and add --trust-remote-code to "
                "run it."
            )
        if model_type not in list(CONFIG_MAPPING):
            raise ValueError(
                f"`model.base`={model!r} is a {model_type!r}, which transformers has no code for, and commands run "
                "no other: use Python, `add_memory(..., trust_remote_code=True)` and `MemoryTrainer`."
            )
    return config_of(model, any_kind=True)


def change_config(config, changed: dict[str, Any]) -> None:
    """Give fields of a model's config other values, all of them or none.

    Raises:
        ValueError: the model cannot run with them, or has no such field.
    """
    for name, value in changed.items():
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError(f"`{name}`={value} must be at most {MAX_INTEGER:,}.")
        if name not in type(config).__dataclass_fields__:
            raise ValueError(f"`{name}`={value!r} has no meaning for a {config.model_type!r}: leave it out.")
    tried = copy.copy(config)
    for name, value in changed.items():
        setattr(tried, name, value)
    tried.validate_architecture()
    for name, value in changed.items():
        setattr(config, name, value)


def check_language_model(model: str, config) -> None:
    """Raise a `ValueError` where `config`, of a folder or repository, is that of no language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    names = config.architectures or ["ForCausalLM"]
    name = names[0] if isinstance(names, list) else names
    if (
        not isinstance(name, str)
        or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        or not name.endswith(("ForCausalLM", "LMHeadModel"))
    ):
        raise ValueError(
            f"`model`={model!r} holds a {name!r}, which is not a language model: give one that predicts text."
        )


def check_json(folder: Path) -> None:
    """Raise a `ValueError` where a folder has no config.json, or a JSON file of a model that holds no object."""
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ValueError(
                f"`model`={str(folder)!r} holds adapters alone: give a whole model, such as one that was trained with "
                "--lora.merge true."
            )
        if any(folder.glob("checkpoint-*")):
            raise ValueError(
                f"`model`={str(folder)!r} has checkpoints and no config.json: its training has not ended. Resume it with "
                f"`transformers-xl train --resume -o {folder}`, or give one of the checkpoints."
            )
        raise ValueError(
            f"`model`={str(folder)!r} has no config.json: give a folder that `transformers-xl train` wrote."
        )
    _check_files(folder)


def _check_files(folder: Path) -> None:
    from transformers_xl.files.json_files import read_json

    for name in JSON_FILES:
        if (folder / name).exists():
            read_json(folder / name)
    check_shards(folder)


def check_shards(folder: Path) -> None:
    """Raise a `ValueError` where the index of the weights in a folder names a file that is not in it."""
    from transformers_xl.files.json_files import read_json

    index = folder / "model.safetensors.index.json"
    shards = read_json(index).get("weight_map") if index.is_file() else {}
    if not isinstance(shards, dict):
        raise ValueError(
            f"{str(index)!r}: `weight_map`={shards!r} must be an object: names of weights and their files."
        )
    for name, shard in shards.items():
        if not isinstance(shard, str) or shard != Path(shard).name or not (folder / shard).is_file():
            raise ValueError(
                f"{str(index)!r}: `weight_map` has {name!r} in {shard!r}, which is no file of this folder."
            )


def check_inner_type(folder: Path) -> None:
    """Raise a `ValueError` where a folder holds memory around a base whose classes are not known here."""
    from transformers import CONFIG_MAPPING

    from transformers_xl.files.json_files import read_json

    base = read_json(folder / "config.json").get("text_config")
    model_type = base.get("model_type") if isinstance(base, dict) else None
    if model_type is not None and model_type not in list(CONFIG_MAPPING):
        raise ValueError(
            f"`model`={str(folder)!r} holds memory around a {model_type!r}, which transformers has no code for: load it in "
            "Python, with `AutoConfig.register` and `AutoModelForCausalLM.register` of the base's own classes."
        )


def check_weights(folder: Path, config, auto_class) -> dict[str, Path]:
    """The files of weights in a folder by the names of the tensors that they hold.

    Headers are read, and a model without storage is made: an absurd size costs nothing.

    Raises:
        ValueError: a file is damaged, or `config` asks for other shapes, or for numbers of another kind.
    """
    import torch

    from transformers_xl.configuration.configuration_memory import MAX_LAYERS

    shapes = shapes_of(folder)
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > MAX_LAYERS:  # of a model of transformers; ours refuse it themselves
        raise ValueError(
            f"{str(folder / 'config.json')!r}: `num_hidden_layers`={layers} must be at most {MAX_LAYERS}."
        )
    with blamed(folder / "config.json"), torch.device("meta"):
        expected = auto_class.from_config(config).state_dict()
    for name in sorted(expected.keys() & shapes.keys()):
        (file, shape, dtype), asked = shapes[name], list(expected[name].shape)
        if shape != asked:
            raise ValueError(f"{str(file)!r}: {name!r} is of shape {shape}, but config.json asks for {asked}.")
        if not getattr(config, "quantization_config", None):
            check_kind(file, name, dtype, expected[name].is_floating_point(), expected[name].is_complex())
    return {name: file for name, (file, *_) in shapes.items()}


def check_loaded(base: str, info: dict[str, Any], changed: dict[str, Any]) -> None:
    """Raise a `ValueError` where what `from_pretrained` says of a base (`output_loading_info=True`) is that fields of its
    config that were `changed` ask for other weights."""
    wrong = sorted({*info["missing_keys"], *info["unexpected_keys"], *map(str, info["mismatched_keys"])})
    if wrong:
        raise ValueError(
            f"`model.base`={base!r} has weights that do not fit {changed or 'its config'}, such as {wrong[0]!r}: change "
            "only fields that do not affect weights, such as `mem_len` and `dropout`."
        )


def check_kind(file: Path, name: str, dtype: str, is_float: bool = True, is_complex: bool = False) -> None:
    """Raise a `ValueError` where a weight is of integers, booleans or complex numbers and is to be of others: transformers
    would convert it silently. `dtype`: as safetensors spells it, such as "BF16"."""
    if (is_float and not dtype.startswith(("F", "BF"))) or (is_complex and not dtype.startswith("C")):
        asked = "complex numbers" if is_complex else "floating-point numbers"
        raise ValueError(f"{str(file)!r}: the weight {name!r} is of type {dtype}, but the model has {asked} there.")


def shapes_of(folder: Path) -> dict[str, tuple[Path, list[int], str]]:
    """File, shape and type of each weight in the files of a folder, of a model or of adapters, from their headers.

    Raises:
        ValueError: a file is damaged, or not of this folder.
    """
    from safetensors import safe_open

    from transformers_xl.hub.adapter_folders import ADAPTER_WEIGHTS

    check_shards(folder)
    shapes: dict[str, tuple[Path, list[int], str]] = {}
    for file in sorted([*folder.glob("model*.safetensors"), *folder.glob(ADAPTER_WEIGHTS)]):
        with blamed(file), safe_open(file, framework="np") as weights:
            for name in weights.keys():  # noqa: SIM118  it is no dictionary
                weight = weights.get_slice(name)
                shapes[name] = file, weight.get_shape(), weight.get_dtype()
    return shapes


__all__ = [
    "MAX_BEAMS",
    "base_config",
    "change_config",
    "check_generation",
    "check_language_model",
    "check_weights",
    "config_of",
    "import_models",
    "load_anywhere",
    "load_model",
    "load_tokenizer",
    "load_weights",
    "shapes_of",
    "to_be_had",
    "without_code",
]
