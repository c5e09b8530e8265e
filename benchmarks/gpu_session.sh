#!/bin/sh
# All that needs a GPU, in one go: the tests, a soak, recordings, the figures. Results go to $OUT (default: gpu-session).
#   benchmarks/gpu_session.sh [PART…]      parts: build tests soak recordings tasks overhead; none named: all of them
# ROUNDS: of the benchmarks (default 2, and 1 where the host is slow, so that all of it ends within ten minutes). Each
# part has a time limit of its own, so that a hang costs no more than that.
set -u
started=$(date +%s)
OUT=${OUT:-gpu-session}
python=${PYTHON:-python3}
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}." PYTHONUNBUFFERED=1
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd)
failed=0

part() { # name, seconds, command…
  name=$1 limit=$2
  shift 2
  begin=$(date +%s)
  timeout -s INT -k 10 "$limit" "$@" >"$OUT/$name.log" 2>&1  # interrupted, pytest says what it has found
  code=$?
  [ "$code" -eq 0 ] || failed=1
  tail -n 15 "$OUT/$name.log"
  echo "== $name: exit $code after $(($(date +%s) - begin)) s"
}
pytest="$python -X faulthandler -m pytest -s -p no:cacheprovider --tb=short --durations=12"

model=layers=2,d_model=512,heads=8,kv_heads=2,ffn=2048,vocab=4096,out_tile=16,prompt_tokens=12,max_tokens=24,preempt=0.03
record() { # name, spec
  rm -rf "$OUT/$1.mscope"
  part "record-$1" 60 "$python" -m megascope capture "cuda:$model,steps=90,$2" -o "$OUT/$1.mscope" --quiet
  (cd "$OUT" && tar cf "$1.mscope.tar" "$1.mscope" && du -sk "$1.mscope" && rm -r "$1.mscope")
}

rounds() {
  [ $(($(date +%s) - started)) -gt 440 ] && late=1 || late=2
  echo "${ROUNDS:-$late}"
}

for what in ${*:-build tests soak recordings tasks overhead}; do
  case $what in
    build) part build 120 "$python" benchmarks/gpu_build.py --vm-driver "$OUT/vm_driver" ;;
    tests)
      [ ! -x "$OUT/vm_driver" ] || export MEGASCOPE_VM_DRIVER="$OUT/vm_driver"
      part tests 330 $pytest tests/gpu -m "gpu and not slow" --timeout 60
      ;;
    soak) part soak 200 $pytest tests/gpu/test_soak.py -m "gpu and slow" --timeout 190 ;;
    recordings)
      record dynamic schedule=dynamic
      record static schedule=static
      record starved schedule=dynamic,starve=l01.gate_up/5:400000@30-59
      record experts schedule=dynamic,experts=8,ffn=512,ranks=2,steps=75
      ;;
    tasks) part tasks 150 "$python" benchmarks/gpu_tasks.py --rounds "$(rounds)" --out "$OUT/gpu_tasks.json" ;;
    overhead) part overhead 100 "$python" benchmarks/gpu_overhead.py --rounds "$(rounds)" --out "$OUT/gpu_overhead.json" ;;
    *) echo "there is no part $what" >&2; exit 2 ;;
  esac
done
exit $failed
