#!/bin/sh
# All that needs a GPU, in one go: the tests, the figures, and recordings. Results go to $OUT (default: gpu-session).
#   benchmarks/gpu_session.sh [ROUNDS]
set -u
rounds=${1:-7}
OUT=${OUT:-gpu-session}
python=${PYTHON:-python3}
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}." PYTHONUNBUFFERED=1
mkdir -p "$OUT"
failed=0

"$python" -m pytest tests/gpu -m gpu -q -s -x --timeout 40 -p no:cacheprovider --tb=short 2>&1 | tee "$OUT/tests.log"
"$python" benchmarks/gpu_overhead.py --rounds "$rounds" --out "$OUT/gpu_overhead.json" 2>&1 | tee "$OUT/gpu_overhead.log" || failed=1

model=layers=2,d_model=512,heads=8,kv_heads=2,ffn=2048,vocab=4096,out_tile=16,prompt_tokens=12,max_tokens=24,preempt=0.03
record() { # name, spec
  rm -rf "$OUT/tmp.mscope"
  "$python" -m megascope capture "cuda:$model,steps=90,$2" -o "$OUT/tmp.mscope" --quiet || failed=1
  (cd "$OUT" && mv tmp.mscope "$1.mscope" && tar cf "$1.mscope.tar" "$1.mscope" && du -sk "$1.mscope" && rm -r "$1.mscope")
}
record dynamic schedule=dynamic
record static schedule=static
record starved schedule=dynamic,starve=l01.gate_up/5:400000@30-59
exit $failed
