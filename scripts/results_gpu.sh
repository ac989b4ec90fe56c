#!/usr/bin/env bash
# Tables of docs/results.md on a GPU, the most important ones first, then a benchmark, in about 25 minutes (an estimate: of the
# tables, only those of the methods and of WaLDORf have been made on a GPU, both in 11 minutes). What is finished is skipped, so
# the same command resumes. MINI=1 tries every step on few rows, also on a CPU; its scores carry no information.
# Usage: scripts/results_gpu.sh DATA OUT [MINUTES]      then: cat OUT/*/compare.md OUT/*.out
set -euo pipefail
data=$1 out=$2 end=$((SECONDS + 60 * ${3:-25}))
mtkd=${MTKD:-mtkd} here=$(dirname "$0") failed=0
grids=$here/grids
mkdir -p "$out"
few="--limit 500 --eval-limit 1500" full="--limit 10000 --eval-limit 1500" squad="--limit 10000 --eval-limit 2000" waldorf="--limit 40000 --eval-limit 2000" jobs="--jobs 4"
generator="--d-model 512 --heads 8 --layers 6 --d-ff 1024 --steps 8000 --eval-limit 1000" bench="--compile both --rows 32 --rows 256" paragraphs=1000000
if [ -n "${MINI:-}" ]; then
  few="--tasks rte --seeds 0 --limit 16 --eval-limit 16" full=$few squad="--limit 16 --eval-limit 16" waldorf=$squad jobs=""
  generator="--d-model 32 --heads 2 --layers 1 --d-ff 64 --steps 2 --limit 64 --eval-limit 8" paragraphs=20
  bench="--compile off --device cpu --rows 8 --rounds 1 --student 2x64 --teacher 2x64"
  grids=$out/grids
  mkdir -p "$grids"
  for file in "$here"/grids/*.toml; do  # two steps for every model
    sed -E '/^limit = /d; s/"train.epochs" = [0-9]+/"train.steps" = 2/; s/(steps(_per_epoch)?" = )[0-9]+/\12/g' "$file" > "$grids/$(basename "$file")"
  done
fi

step() { # step NAME COMMAND...: run it in the time that is left, unless it is finished
  local name=$1 left=$((end - SECONDS)); shift
  if [ -e "$out/$name.finished" ]; then return; fi
  if [ "$left" -lt 20 ]; then echo "no time left for $name"; failed=1; return; fi
  echo "== $name: $*"
  if timeout --kill-after 60 "$left" "$@" > "$out/$name.out" 2>&1; then touch "$out/$name.finished"; return; fi
  echo "FAILED, or out of time: $name; see $out/$name.out"; failed=1
}
grid() { # grid NAME GRID OPTIONS...: a table in $out/NAME/compare.md
  step "$1" $mtkd compare "$grids/$2.toml" --data "$data" --out "$out/$1" $jobs --quiet "${@:3}"
}
contexts() { # the different paragraphs of SQuAD's training set, one per line
  python -c 'import sys; import pyarrow.parquet as pq
texts = pq.read_table(sys.argv[1] + "/squad/train.parquet", columns=["context"])["context"].to_pylist()
print("\n".join(list(dict.fromkeys(" ".join(text.split()) for text in texts))[: int(sys.argv[2])]))' "$data" "$paragraphs" > "$out/contexts.txt"
}

contexts
step generator $mtkd augment questions train --data "$data" --model scratch --format sentence --max-input 96 --max-output 32 $generator \
  --precision bf16 --out "$out/t5" --quiet &  # beside the tables
grid few few_labels $few
grid full all_labels $full
grid methods methods_steps --teacher "$out/full/teacher/"*/ $full
step questions $mtkd augment questions generate --text "$out/contexts.txt" --per-paragraph 3 --out "$out/generated" --quiet
grid readers generated_questions --corpus "$out/generated" $squad
grid waldorf waldorf-gpu $waldorf
wait
step samples $mtkd augment questions generate --model "$out/t5" --text "$out/contexts.txt" --limit 200 --out "$out/samples" --quiet
step bench timeout 180 python "$here/bench_gpu.py" $bench
exit $failed
