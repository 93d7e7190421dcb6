"""Every field of `TrainingArguments` is decided on: it works, has no influence, or is refused with the reason."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import ParallelismConfig
from safetensors.torch import load_file
from trained import LANES, QUIET, SEGMENT, Pairs, small_model, text
from transformers import TrainingArguments

from transformers_xl import MemoryTrainer, TransformerXLForSequenceClassification
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.arguments import REQUIRED, MemoryTrainingArguments, check_arguments

STEPS = 3
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}

# fields that change nothing in a training on one CPU: the weights afterwards are those of a training without them
NO_INFLUENCE = {
    "average_tokens_across_devices": {"average_tokens_across_devices": False},
    "batch_eval_metrics": {"batch_eval_metrics": True},
    "bf16_full_eval": {"bf16_full_eval": True, "eval_strategy": "steps", "eval_steps": 1},
    "data_seed": {"data_seed": 1},
    "dataloader_drop_last": {"dataloader_drop_last": False},
    "dataloader_in_order": {"dataloader_in_order": True},
    "dataloader_multiprocessing_context": {"dataloader_multiprocessing_context": "fork", "dataloader_num_workers": 1},
    "dataloader_num_workers": {"dataloader_num_workers": 2},
    "dataloader_persistent_workers": {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
    "dataloader_pin_memory": {"dataloader_pin_memory": False},
    "dataloader_prefetch_factor": {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 1},
    "ddp_backend": {"ddp_backend": None},  # these in two processes: test_processes.py
    "ddp_broadcast_buffers": {"ddp_broadcast_buffers": True},
    "ddp_bucket_cap_mb": {"ddp_bucket_cap_mb": 1},
    "ddp_find_unused_parameters": {"ddp_find_unused_parameters": True},
    "ddp_static_graph": {"ddp_static_graph": True},
    "ddp_timeout": {"ddp_timeout": 60},
    "debug": {"debug": "underflow_overflow"},
    "disable_tqdm": {"disable_tqdm": False},
    "do_eval": {"do_eval": True},
    "do_predict": {"do_predict": True},
    "do_train": {"do_train": True},
    "eval_accumulation_steps": {"eval_accumulation_steps": 1, **BY_STEPS},
    "eval_delay": {"eval_delay": 2, **BY_STEPS},
    "eval_do_concat_batches": {"eval_do_concat_batches": False, **BY_STEPS},
    "eval_on_start": {"eval_on_start": True, **BY_STEPS},
    "eval_steps": BY_STEPS,
    "eval_strategy": BY_STEPS,
    "eval_use_gather_object": {"eval_use_gather_object": True, **BY_STEPS},
    "fp16_full_eval": {"fp16_full_eval": True, "bf16_full_eval": False, "eval_strategy": "steps", "eval_steps": 1},
    "fsdp_config": {"fsdp_config": None},
    "full_determinism": {"full_determinism": True},
    "greater_is_better": {"greater_is_better": False, "metric_for_best_model": "loss", **BY_STEPS},
    "hub_always_push": {"hub_always_push": True},
    "hub_model_id": {"hub_model_id": "somebody/model"},
    "hub_private_repo": {"hub_private_repo": True},
    "hub_revision": {"hub_revision": "main"},
    "hub_strategy": {"hub_strategy": "end"},
    "hub_token": {"hub_token": "hf_nothing"},
    "include_for_metrics": {"include_for_metrics": ["inputs", "loss"], **BY_STEPS},
    "include_num_input_tokens_seen": {"include_num_input_tokens_seen": "all"},
    "length_column_name": {"length_column_name": "size"},
    "liger_kernel_config": {"liger_kernel_config": {}},
    "local_rank": {"local_rank": -1},
    "log_level": {"log_level": "error"},
    "log_level_replica": {"log_level_replica": "error"},
    "log_on_each_node": {"log_on_each_node": False},
    "logging_first_step": {"logging_first_step": True},
    "logging_nan_inf_filter": {"logging_nan_inf_filter": False},
    "logging_steps": {"logging_steps": 2},
    "logging_strategy": {"logging_strategy": "epoch"},
    "metric_for_best_model": {"metric_for_best_model": "loss", **BY_STEPS},
    "optim_target_modules": {"optim_target_modules": ["q_proj"]},
    "output_dir": {},
    "per_device_eval_batch_size": {"per_device_eval_batch_size": LANES},
    "prediction_loss_only": {"prediction_loss_only": True, **BY_STEPS},
    "project": {"project": "memory"},
    "push_to_hub": {"push_to_hub": False},  # True: tests/hub/test_trainer_push.py
    "report_to": {"report_to": "none"},
    "restore_callback_states_from_checkpoint": {"restore_callback_states_from_checkpoint": False},
    "resume_from_checkpoint": {"resume_from_checkpoint": "anything"},  # an argument of `train`
    "run_name": {"run_name": "first"},
    "save_on_each_node": {"save_on_each_node": True, **BY_STEPS},
    "save_only_model": {"save_only_model": True, **BY_STEPS},
    "save_steps": BY_STEPS,
    "save_strategy": {
        "save_strategy": "best",
        "metric_for_best_model": "loss",
        "eval_strategy": "steps",
        "eval_steps": 1,
    },
    "save_total_limit": {"save_total_limit": 1, **BY_STEPS},
    "skip_memory_metrics": {"skip_memory_metrics": False},
    "tf32": {"tf32": False},
    "torch_empty_cache_steps": {"torch_empty_cache_steps": 1},
    "trackio_bucket_id": {"trackio_bucket_id": "bucket"},
    "trackio_space_id": {"trackio_space_id": "space"},
    "trackio_static_space_id": {"trackio_static_space_id": False},
    "use_cpu": {"use_cpu": True},
}

COMPILED = {"torch_compile": True, "torch_compile_backend": "eager", "torch_compile_mode": "default"}

# fields that change the training, and do so
WORKS = {
    "accelerator_config": {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}},
    "activation_checkpointing": {"activation_checkpointing": True},
    "activation_checkpointing_kwargs": {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"every_n_layers": 2},
    },
    "adam_beta1": {"optim": "adamw_torch", "adam_beta1": 0.5},
    "adam_beta2": {"optim": "adamw_torch", "adam_beta2": 0.5},
    "adam_epsilon": {"optim": "adamw_torch", "adam_epsilon": 0.1},
    "bf16": {"bf16": True},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "gradient_checkpointing_kwargs": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "label_names": {"label_names": ["labels"], **BY_STEPS},
    "label_smoothing_factor": {"label_smoothing_factor": 0.1},
    "learning_rate": {"learning_rate": 0.01},
    "load_best_model_at_end": {"load_best_model_at_end": True, **BY_STEPS},
    "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0.01}},
    "lr_scheduler_type": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 1},
    "max_grad_norm": {"max_grad_norm": 0.1},
    "max_steps": {"max_steps": 2},
    "neftune_noise_alpha": {"neftune_noise_alpha": 5.0},
    "num_train_epochs": {"num_train_epochs": 2},
    "optim": {"optim": "adafactor"},
    "optim_args": {"optim": "rmsprop", "optim_args": "momentum=0.9"},
    "per_device_train_batch_size": {"per_device_train_batch_size": LANES},
    "seed": {"seed": 1},
    "torch_compile": COMPILED,
    "torch_compile_backend": COMPILED,
    "torch_compile_mode": COMPILED,
    "train_sampling_strategy": {"train_sampling_strategy": "sequential"},
    "warmup_steps": {"warmup_steps": 2, "lr_scheduler_type": "constant_with_warmup"},
    "weight_decay": {"weight_decay": 0.1},
}

REFUSED = {
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "deepspeed": {"deepspeed": {"zero_optimization": {"stage": 2}}},
    "enable_jit_checkpoint": {"enable_jit_checkpoint": True},
    "fp16": {"fp16": True},  # on a CPU; test_half_precision_on_a_gpu
    "fsdp": {"fsdp": True},  # on a CPU; test_fsdp2_through_accelerate
    "ignore_data_skip": {"ignore_data_skip": True},
    "parallelism_config": {"parallelism_config": ParallelismConfig()},
    "remove_unused_columns": {"remove_unused_columns": True},
    "use_cache": {"use_cache": True},
    "use_liger_kernel": {"use_liger_kernel": True},
}

# values of other fields that are refused
REFUSED_VALUES = [
    {"train_sampling_strategy": "random"},
    {"train_sampling_strategy": "group_by_length"},
    {"train_sampling_strategy": "batch_rebalance"},
    {"dataloader_in_order": False},
    {"accelerator_config": {"split_batches": True}},
    {"hub_strategy": "checkpoint"},
    {"hub_strategy": "all_checkpoints"},
    {"lr_scheduler_kwargs": {"foo": 1}},
    {"lr_scheduler_kwargs": {"foo": 1}, "lr_scheduler_type": "cosine"},
    {"lr_scheduler_kwargs": {"num_cycles": "x"}, "lr_scheduler_type": "cosine"},
]


def together(cases: dict[str, dict]) -> list[dict]:
    """As few trainings as possible that set all fields of `cases`: fields with other values for one name stay apart."""
    groups: list[dict] = []
    for fields in cases.values():
        for group in groups:
            if all(group.get(name, value) == value for name, value in fields.items()):
                group |= fields
                break
        else:
            groups.append(dict(fields))
    return groups


def memory_arguments(folder, **fields) -> MemoryTrainingArguments:
    defaults = {
        "use_cpu": True, "per_device_train_batch_size": LANES, "per_device_eval_batch_size": LANES, "learning_rate": 0.05,
        "num_train_epochs": 1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "logging_steps": 1,
    }  # fmt: skip
    return MemoryTrainingArguments(str(folder), **(QUIET | defaults | fields))


def trained(folder, model=None, **fields) -> MemoryTrainer:
    stream = TextStream(text(LANES * SEGMENT * STEPS + 1), SEGMENT, LANES)
    args = memory_arguments(folder, **fields)
    trainer = MemoryTrainer(model or small_model(), args, train_dataset=stream, eval_dataset=stream)
    trainer.train()
    return trainer


def weights(trainer: MemoryTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> torch.Tensor:
    return weights(trained(tmp_path_factory.mktemp("plain")))


@pytest.fixture(autouse=True)
def _no_lasting_determinism():
    yield
    torch.use_deterministic_algorithms(False)


def test_every_field_is_decided_on():
    """A new version of transformers that offers more must be looked at."""
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    decided = [*NO_INFLUENCE, *WORKS, *REFUSED]
    assert len(decided) == len(set(decided))
    assert fields == set(decided)


@pytest.mark.parametrize("fields", together(NO_INFLUENCE), ids=lambda fields: f"{len(fields)} fields")
def test_fields_without_influence(tmp_path, plain, fields: dict):
    assert torch.equal(weights(trained(tmp_path, **fields)), plain)


# what does not show in the weights of three steps without dropout, or is the value of every training here
UNSEEN = {
    "activation_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "label_names", "per_device_train_batch_size", "seed", "train_sampling_strategy",
}  # fmt: skip


@pytest.mark.parametrize("field", [field for field in WORKS if WORKS[field] is not COMPILED])
def test_fields_that_work(tmp_path, plain, field: str):
    trainer = trained(tmp_path, **WORKS[field])
    found = weights(trainer)
    assert found.isfinite().all()
    if field in UNSEEN:
        torch.testing.assert_close(found, plain, atol=1e-6, rtol=1e-5)
    elif field == "load_best_model_at_end":
        best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
        assert all(torch.equal(trainer.model.state_dict()[name], tensor) for name, tensor in best.items())
    else:
        assert not torch.equal(found, plain)


@pytest.mark.slow
def test_a_compiled_training_is_the_plain_one(tmp_path):
    """Two steps are both forms of a step: without a memory, and with one. One layer is traced as the next."""
    found = [
        weights(trained(tmp_path / name, small_model(num_hidden_layers=1), max_steps=2, **fields))
        for name, fields in (("plain", {}), ("compiled", COMPILED))
    ]
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fields", [*REFUSED.values(), *REFUSED_VALUES], ids=str)
def test_fields_that_are_refused(tmp_path, fields: dict):
    stream = TextStream(text(100), SEGMENT, LANES)
    name = next(iter(next(iter(fields.values())))) if "accelerator_config" in fields else next(iter(fields))
    with pytest.raises(ValueError, match=f"(?s){name}`.*: (set|leave|use)"):
        MemoryTrainer(small_model(), memory_arguments(tmp_path, **fields), train_dataset=stream)


def test_the_defaults_of_the_library_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="train_sampling_strategy"):
        MemoryTrainer(small_model(), TrainingArguments(str(tmp_path), **QUIET))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n_gpu": 2}, "n_gpu"),
        ({"deepspeed_plugin": object()}, "deepspeed"),
        ({"world_size": 2, "dataloader_drop_last": False}, "dataloader_drop_last"),
        ({"fsdp": True, "fsdp_config": {"version": 1}, "device": torch.device("cuda")}, "fsdp_config"),
        ({"fsdp": True, "fsdp_config": {"xla": True}, "device": torch.device("cuda")}, "fsdp_config"),
    ],
)
def test_what_a_machine_or_a_launcher_chose_is_refused(tmp_path, fields: dict, name: str):
    args = memory_arguments(tmp_path)
    names = [field.name for field in dataclasses.fields(args)]
    machine = {"n_gpu": 0, "world_size": 1, "device": args.device, "deepspeed_plugin": None}
    described = SimpleNamespace(**({name: getattr(args, name) for name in names} | machine | fields))
    with pytest.raises(ValueError, match=f"`{name}`"):
        check_arguments(described)


def test_processes_that_would_train_alone_are_refused(tmp_path, monkeypatch):
    """On a machine without GPUs Accelerate joins the processes of a launcher only where `use_cpu` is set, as
    `MemoryTrainingArguments` does."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    required = {name: value for name, (value, _) in REQUIRED.items() if name != "parallelism_config"}
    with pytest.raises(ValueError, match="`use_cpu`=False makes each of the 2 processes.*set `use_cpu=True`"):
        MemoryTrainer(small_model(), TrainingArguments(str(tmp_path), use_cpu=False, **required))


def test_smoothing_is_refused_without_a_softmax_over_the_vocabulary(tmp_path):
    args = memory_arguments(tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="label_smoothing_factor.*no language model"):
        MemoryTrainer(small_model(TransformerXLForSequenceClassification), args)
    with pytest.raises(ValueError, match="label_smoothing_factor.*no language model"):
        MemoryTrainer(args=args, model_init=lambda: small_model(TransformerXLForSequenceClassification))


def test_an_iterable_dataset_has_no_workers(tmp_path):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(Pairs(classify=False))

    with pytest.raises(ValueError, match="dataloader_num_workers"):
        MemoryTrainer(
            small_model(), memory_arguments(tmp_path, dataloader_num_workers=1, max_steps=1), train_dataset=Endless()
        )


@pytest.mark.gpu
def test_half_precision_on_a_gpu(tmp_path):
    trainer = trained(tmp_path, use_cpu=False, fp16=True)
    assert weights(trainer).isfinite().all()
    assert trainer.accelerator.scaler is not None


def test_steps_say_how_long_a_training_is(tmp_path):
    """`max_steps` above 0 counts alone, as in transformers: epochs may be any number then."""
    check_arguments(MemoryTrainingArguments(str(tmp_path), max_steps=1, num_train_epochs=0))
    for fields, said in (
        ({"num_train_epochs": 0}, "`num_train_epochs`=0 must be above 0"),
        ({"max_steps": 0}, "=0 trains"),
    ):
        with pytest.raises(ValueError, match=said):
            check_arguments(MemoryTrainingArguments(str(tmp_path), **fields))


IMPOSSIBLE = {
    "lr_scheduler_type": "sinus",
    "optim": "adamm",
    "eval_strategy": "step",
    "save_strategy": "never",
    "hub_strategy": "always",
    "log_level": "loud",
    "save_steps": 0,
    "save_total_limit": 0,
    "per_device_eval_batch_size": 0,
    "gradient_accumulation_steps": 0,
    "dataloader_num_workers": -1,
    "weight_decay": -0.1,
    "max_grad_norm": float("nan"),
    "neftune_noise_alpha": -1.0,
    "label_smoothing_factor": 1.5,
    "adam_beta2": 1.0,
    "adam_epsilon": -1e-8,
    "eval_delay": -1,
    "early_stopping_patience": -1,
    "mem_len_warmup_steps": -2,
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_value_that_a_field_cannot_have_is_refused_by_name(name, tmp_path):
    """Most of them reach a step in transformers, or are ignored there."""
    with pytest.raises(ValueError, match=f"`{name}`={IMPOSSIBLE[name]!r} must be"):
        MemoryTrainingArguments(output_dir=str(tmp_path), **{name: IMPOSSIBLE[name]})


def test_other_arguments_are_held_to_the_same_limits(tmp_path):
    args = TrainingArguments(
        output_dir=str(tmp_path), train_sampling_strategy="sequential", remove_unused_columns=False
    )
    args.label_smoothing_factor = 2.0
    with pytest.raises(ValueError, match=r"`label_smoothing_factor`=2\.0 must be at least 0 and at most 1"):
        check_arguments(args)


def test_less_is_better_of_what_an_evaluation_gives(tmp_path):
    """Else the worst checkpoint would be kept as the best, and a training that improves would be stopped early."""
    saving = {"save_strategy": "best", "metric_for_best_model": "perplexity", "load_best_model_at_end": True}
    options = {**QUIET, **BY_STEPS, **saving, "eval_steps": 2, "early_stopping_patience": 1}
    args = MemoryTrainingArguments(
        str(tmp_path), per_device_train_batch_size=LANES, per_device_eval_batch_size=LANES, max_steps=6, **options
    )
    stream = TextStream(np.arange(600) % 7, SEGMENT, LANES)
    model = small_model()
    trainer = MemoryTrainer(model, args, train_dataset=stream, eval_dataset=stream)
    trainer.train()
    found = [entry["eval_perplexity"] for entry in trainer.state.log_history if "eval_perplexity" in entry]
    assert len(found) == 3
    assert found[0] > found[1] > found[2]
    assert trainer.state.best_metric == found[2]
    assert trainer.evaluate()["eval_perplexity"] == pytest.approx(found[2])


@pytest.mark.parametrize("metric", ["perplexity", "eval_valid_bits_per_byte", "word_perplexity"])
def test_more_is_refused_as_better(tmp_path, metric: str):
    """transformers says so by itself of what is no loss."""
    args = TrainingArguments(
        output_dir=str(tmp_path),
        metric_for_best_model=metric,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
    )
    with pytest.raises(ValueError, match=f"`greater_is_better`=True would take the worst .*'{metric}'"):
        check_arguments(args)


def test_workers_that_live_on_would_miss_the_epochs_of_a_roll(tmp_path):
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    args = MemoryTrainingArguments(str(tmp_path), per_device_train_batch_size=LANES, **QUIET, **workers)
    with pytest.raises(ValueError, match="`dataloader_persistent_workers`=True keeps copies of `train_dataset`"):
        MemoryTrainer(small_model(), args, train_dataset=TextStream(text(600), SEGMENT, LANES, roll=True))
