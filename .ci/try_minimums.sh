#!/usr/bin/env bash
# What pyproject.toml declares is what was tried: the lowest version of each dependency, in an environment of its own (on
# Linux about 6 GB with torch's CUDA packages, deleted at the end), and tests of what these versions have changed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 UV_CACHE_DIR="$work/cache"

python3 -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet -c constraints.txt uv
"$work/tools/bin/uv" venv --quiet --python python3 "$work/venv"
"$work/tools/bin/uv" pip install --quiet --python "$work/venv" --resolution lowest-direct . pytest==8.0.0 pytest-timeout==2.3.1
"$work/tools/bin/uv" pip freeze --python "$work/venv" | grep -iE '^(transformers|torch|accelerate|huggingface|safetensors|tokenizers|numpy|matplotlib|rich|tqdm|typer)'

cp -r tests "$work/tests"  # outside of the checkout, so that the installed package is tested
cd "$work"
