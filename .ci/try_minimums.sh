#!/usr/bin/env bash
# What pyproject.toml declares is what was tried: the lowest version of each dependency, in an environment of its own, which
# is deleted at the end (6 GB on Linux, where torch brings CUDA packages), and tests of what changed between the versions.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 PYTHONPATH="$PWD" UV_CACHE_DIR="$work/cache" VIRTUAL_ENV="$work/venv"

python3 -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet uv
uv="$work/tools/bin/uv"
"$uv" venv --quiet --python python3 "$VIRTUAL_ENV"
"$uv" pip install --quiet --resolution lowest-direct -r pyproject.toml
"$uv" pip freeze > "$work/minimums.txt"
"$uv" pip install --quiet -c "$work/minimums.txt" pytest pytest-timeout hypothesis
cat "$work/minimums.txt"

# Left out: accelerate offloads a whole model to disk from 1.15 on; optuna is no dependency.
"$VIRTUAL_ENV/bin/python" -m pytest -q -p no:cacheprovider \
  tests/runs/test_onednn_linear.py tests/modeling/test_{private_names,missing_weights}.py \
  tests/configuration/test_config_fields.py \
  tests/training/test_output_lock.py tests/training/test_trainer_whole.py \
  --deselect tests/training/test_trainer_whole.py::test_a_search_begins_every_trial_without_memory \
  tests/evaluation/test_plots.py tests/hub/test_code_export.py \
  tests/uses/test_device_map.py --deselect tests/uses/test_device_map.py::test_weights_on_disk \
  tests/cli/test_commands.py::test_{train_writes_a_folder_for_the_hub,generate_streams_and_repeats_with_its_seed}
echo "the lowest versions work"
