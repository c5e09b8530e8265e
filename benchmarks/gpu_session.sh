#!/bin/sh
# All that needs a GPU, in one go: recordings, the tests, the figures. Results go to $OUT (default: gpu-session).
#   benchmarks/gpu_session.sh [ROUNDS]
# Each part has a time limit of its own, so that a hang costs no more than that.
set -u
rounds=${1:-7}
OUT=${OUT:-gpu-session}
python=${PYTHON:-python3}
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}." PYTHONUNBUFFERED=1
mkdir -p "$OUT"
failed=0

model=layers=2,d_model=512,heads=8,kv_heads=2,ffn=2048,vocab=4096,out_tile=16,prompt_tokens=12,max_tokens=24,preempt=0.03
record() { # name, spec
  rm -rf "$OUT/$1.mscope"
  timeout -k 2 40 "$python" -m megascope capture "cuda:$model,steps=90,$2" -o "$OUT/$1.mscope" --quiet || failed=1
  (cd "$OUT" && tar cf "$1.mscope.tar" "$1.mscope" && du -sk "$1.mscope" && rm -r "$1.mscope")
}
record dynamic schedule=dynamic
record static schedule=static
record starved schedule=dynamic,starve=l01.gate_up/5:400000@30-59

timeout -k 2 120 "$python" -m pytest tests/gpu -m gpu -q -s --timeout 30 -p no:cacheprovider --tb=short 2>&1 |
  tee "$OUT/tests.log"
timeout -k 2 240 "$python" benchmarks/gpu_overhead.py --rounds "$rounds" --out "$OUT/gpu_overhead.json" 2>&1 |
  tee "$OUT/gpu_overhead.log"
exit $failed
