"""Two trainings do not write into one folder."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import SoftFileLock
from trained import LANES, SEGMENT, arguments, small_model, text
from transformers import TrainerCallback

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.files.output_lock import LOCK, output_lock

ROOT = Path(__file__).parent.parent.parent
# holds the lock until it is told to end, or killed; under the name of the command, which imports no torch before it must
HOLDER = """
import sys
from pathlib import Path
sys.argv[0] = "transformers-xl"
from transformers_xl.files.output_lock import output_lock
with output_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


class Calling(TrainerCallback):
    def __init__(self, function):
        self.function = function

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.function()


def build(folder: Path, **fields) -> MemoryTrainer:
    stream = TextStream(text(LANES * SEGMENT * 4 + 1), SEGMENT, LANES)
    args = arguments(folder, **({"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "use_cpu": True} | fields))
    return MemoryTrainer(small_model(), args, train_dataset=stream)


def start(path: Path) -> subprocess.Popen:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_training_into_a_folder_is_refused_and_touches_nothing(tmp_path):
    half_written = tmp_path / "_saving-checkpoint-1" / "model.safetensors"
    half_written.parent.mkdir()
    half_written.write_bytes(b"half of it")
    holder = start(tmp_path / LOCK)
    try:
        trainer = build(tmp_path)
        with pytest.raises(ValueError, match="another run writes into this output folder") as refused:
            trainer.train()
    finally:
        holder.communicate("end\n")
    since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert refused.match(f"process {holder.pid} on host '{socket.gethostname()}' {since}")
    assert half_written.is_file()
    assert trainer.state.global_step == 0
    trainer.train()  # it is free again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]


def test_two_trainings_of_one_process(tmp_path):
    def second() -> None:
        with pytest.raises(ValueError, match=f"process {os.getpid()} on host"):
            build(tmp_path).train()
        build(tmp_path / "elsewhere").train()
        assert (tmp_path / LOCK).is_file()

    first = build(tmp_path)
    first.add_callback(Calling(second))
    first.train()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_the_lock_of_a_training_that_fails_is_released(tmp_path, error: type):
    def fail() -> None:
        raise error

    trainer = build(tmp_path)
    trainer.add_callback(Calling(fail))
    with pytest.raises(error):
        trainer.train()
    assert not (tmp_path / LOCK).exists()
    build(tmp_path).train()


def test_a_killed_training_resumes(tmp_path):
    build(tmp_path).train()
    holder = start(tmp_path / LOCK)
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK).is_file()
    resumed = build(tmp_path, max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3
    assert not (tmp_path / LOCK).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the start of a process in /proc")
def test_a_recycled_process_id_is_no_holder(tmp_path):
    """The lock of a dead process whose id a living one has got: ours."""
    with output_lock(tmp_path / LOCK):
        process, host, started = (tmp_path / LOCK).read_text().splitlines()
    assert int(process) == os.getpid()
    (tmp_path / LOCK).write_text(f"{process}\n{host}\n{int(started) - 1}\n")
    build(tmp_path).train()
    assert not (tmp_path / LOCK).exists()


def test_the_lock_of_another_host_is_refused_with_the_remedy(tmp_path):
    lock = tmp_path / LOCK
    lock.write_text("1\nanother-host\n")
    with pytest.raises(ValueError, match=f"process 1 on host 'another-host' since .* delete {str(lock)!r}"):
        build(tmp_path).train()
    lock.unlink()
    build(tmp_path).train()


def test_a_damaged_lock_is_refused_with_the_remedy(tmp_path):
    (tmp_path / LOCK).touch()
    with pytest.raises(ValueError, match="of which nothing is known: .* delete"):
        build(tmp_path).train()


def test_the_lock_is_held_while_the_checkpoint_is_chosen(tmp_path):
    """The other run may be about to write a newer one, or to delete this one."""
    build(tmp_path).train()
    with (
        SoftFileLock(tmp_path / LOCK),
        pytest.raises(ValueError, match="another run"),
    ):
        build(tmp_path).train(resume_from_checkpoint=tmp_path / "no-checkpoint")
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2
