#!/usr/bin/env bash
# Runs the commands behind docs/results-small.md, most important first. Finished runs are skipped, so it can be resumed.
# Usage: scripts/results.sh DATA OUT [SEEDS]      then: python scripts/results_table.py OUT
set -euo pipefail
data=$1 out=$2 seeds=${3:-"0 1 2"}
mtkd=${MTKD:-mtkd}
own=examples/tasks
singles="sst2 mrpc stsb rte $own/qnli_squad.toml $own/quora.toml $own/snli.toml"
all=${singles// /,}
paraphrase="mrpc,stsb,$own/quora.toml"
nli="rte,$own/qnli_squad.toml,$own/snli.toml"
rows="--data $data --limit 1000 --eval-limit 300 --quiet"
# A quarter of the paper's width, and the teacher's embeddings, to suit 1,000 rows per task and two CPU cores.
small="--batch 64 --set student.max_length=64 --set student.head_hidden_size=128
  --set student.bilstm.hidden_size=64 --set student.bilstm.projection_size=128 --set student.bilstm.output_size=256
  --set train.lr=2e-3 --set train.schedule=linear --set train.precision=bf16 --set teacher.precision=bf16"

run() { # run NAME COMMAND...: skipped if the run is finished
  local name=$1; shift
  if grep -qs '"status": "finished"' "$out/$name/run.json"; then return; fi
  echo "== $name: $*" >&2
  $mtkd "$@" --out "$out/$name" --json "$out/$name.json" > /dev/null || { echo "FAILED: $name" >&2; failed=1; }
}
name_of() { basename "$1" .toml; }
student() {
  case "$*" in *student.bilstm.embeddings=*) ;; *) set -- "$@" --set student.bilstm.embeddings=teacher ;; esac
  run "$1" distill mkd-lstm $rows $small "${@:2}"
}
with_copies="--teacher $out/teacher --corpus $out/corpus --epochs 6"

mkdir -p "$out"
failed=0
run teacher refine $rows --tasks "$all" --encoder minilm --epochs 4 --set train.lr=1e-4 --set train.precision=bf16
[ -f "$out/corpus/manifest.json" ] || $mtkd augment mask --data "$data" --tasks "$all" --limit 1000 --copies 3 \
  --out "$out/corpus" --quiet
ladder() { # the runs of one seed: labels only, one student per task, and one student for all tasks
  local seed=$1
  student "multi-$seed" $with_copies --tasks "$all" --seed "$seed"
  for task in $singles; do
    student "labels-$(name_of "$task")-$seed" --set supervision=labels --teacher "$out/teacher" --tasks "$task" --epochs 24 --seed "$seed"
    student "single-$(name_of "$task")-$seed" $with_copies --tasks "$task" --seed "$seed"
  done
}
tune() {
  for task in $singles; do
    run "tuned-$(name_of "$task")-$1" finetune --model "$out/multi-$1" --task "$task" $rows --epochs 5 --batch 64 --seed "$1" \
      --recipe mkd-finetune --set "learning_rates=[1e-5,5e-5,2e-4]"
  done
}
ladder 0
tune 0
student plain-0 $with_copies --tasks "$all" --set student.kind=bilstm
student noaug-0 --teacher "$out/teacher" --tasks "$all" --epochs 24
student nli-0 $with_copies --tasks "$nli"
student paraphrase-0 $with_copies --tasks "$paraphrase"
student word-0 $with_copies --tasks "$all" --set student.vocabulary=word --set student.bilstm.embeddings=random
student random-0 $with_copies --tasks "$all" --set student.bilstm.embeddings=random
for seed in $seeds; do ladder "$seed"; done
student labels-all-0 --set supervision=labels --teacher "$out/teacher" --tasks "$all" --epochs 24
for seed in $seeds; do tune "$seed"; done
run transformer-0 distill mkd-transformer $rows --tasks "$all" --teacher "$out/teacher" --epochs 6 --batch 64 \
  --set train.lr=2e-4 --set train.precision=bf16 --set teacher.precision=bf16
exit $failed
