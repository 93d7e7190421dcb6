"""The private names of transformers' Trainer that training relies on: a version without one of them fails here."""

import ast
import inspect
from pathlib import Path

import pytest
import transformers
from transformers import Trainer

from transformers_xl import MemoryTrainer
from transformers_xl.training.trainer_overrides import TrainerOverrides

ROOT = Path(__file__).parent.parent.parent
# method -> the parameters that our method takes by name or passes on
OVERRIDDEN = {
    "_get_dataloader": ["dataset", "description", "batch_size", "is_training"],
    "_issue_warnings_after_load": ["load_result"],
    "_load_best_model": [],
    "_run_epoch": ["epoch", "epochs_trained", "steps_trained_in_current_epoch"],
    "_save_checkpoint": ["model", "trial"],
}
CALLED = {
    "_finish_current_push": [],
    "_get_output_dir": ["trial"],
    "_load_rng_state": ["checkpoint"],
    "_save_optimizer_and_scheduler": ["output_dir"],
    "_save_rng_state": ["output_dir"],
    "_save_scaler": ["output_dir"],
    "save_model": ["output_dir", "_internal_call"],
}
ATTRIBUTES = ["_globalstep_last_logged", "_initial_global_step", "_total_loss_scalar", "_tr_loss"]


def own_classes() -> list[type]:
    return [cls for cls in MemoryTrainer.__mro__ if cls.__module__.startswith("transformers_xl.")]


def assigned_by_the_library() -> set[str]:
    tree = ast.parse(inspect.getsource(Trainer))
    return {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


@pytest.mark.parametrize(("name", "parameters"), (OVERRIDDEN | CALLED).items())
def test_the_installed_trainer_has_the_method(name: str, parameters: list[str]):
    method = getattr(Trainer, name, None)
    version = f"transformers {transformers.__version__}"
    assert method is not None, f"{version} has no Trainer.{name}: see its use in training/ and write it anew."
    known = list(inspect.signature(method).parameters)
    missing = [parameter for parameter in parameters if parameter not in known]
    assert not missing, f"Trainer.{name} of {version} has no {missing}, it takes {known}: adapt training/."


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_installed_trainer_has_the_attribute(name: str):
    message = f"Trainer of transformers {transformers.__version__} sets no {name}: adapt training/."
    assert name in assigned_by_the_library(), message


def test_private_methods_are_overridden_in_one_class():
    for cls in own_classes():
        ours = {
            name for name in vars(cls) if name.startswith("_") and not name.startswith("__") and hasattr(Trainer, name)
        }
        assert ours == (set(OVERRIDDEN) if cls is TrainerOverrides else set()), cls
    for name in OVERRIDDEN:
        assert inspect.getdoc(vars(TrainerOverrides)[name]).startswith("Why: "), name


def test_every_private_name_in_use_is_listed():
    of_library = {name for name in vars(Trainer) if name.startswith("_")} | assigned_by_the_library()
    owners, used = ("self", "trainer", "self.trainer", "super()"), set()
    for path in (ROOT / "transformers_xl" / "training").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
                used.add(node.attr)
    private = {name for name in used & of_library if name.startswith("_") and not name.startswith("__")}
    listed = {name for name in {*OVERRIDDEN, *CALLED, *ATTRIBUTES} if name.startswith("_")}
    # `_save_checkpoint` is called by transformers alone
    assert private == listed - {"_save_checkpoint"}
