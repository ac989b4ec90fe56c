#!/usr/bin/env bash
# Few labels, much text: a teacher and students from 500 labels per task, and students that the teacher also teaches
# on up to 10,000 rows per task without using their labels. Finished runs are skipped, so it can be interrupted.
# Usage: scripts/few_labels.sh DATA OUT teacher|bilstm|transformer
set -euo pipefail
data=$1 out=$2
tasks=sst2,mrpc,stsb,rte,cola,examples/tasks/quora.toml,examples/tasks/snli.toml
rows="--data $data --tasks $tasks --eval-limit 1500 --quiet --set train.precision=bf16"
run() { # name, then the command
  local name=$1; shift
  if grep -qs '"status": "finished"' "$out/$name/run.json"; then return; fi
  echo "== $name: mtkd $*" >&2
  mtkd "$@" --out "$out/$name" > /dev/null
}
# The same number of steps: 3 passes over the unlabelled rows are as many as 3 times 785 steps on the labelled ones.
much="--limit 10000 --batch 64 --set teacher.precision=bf16 --teacher $out/teacher"
few="--limit 500 --batch 64 --set train.mixing=proportional --set train.steps_per_epoch=785 --set teacher.precision=bf16
  --teacher $out/teacher"
bilstm="--epochs 6 --set student.embeddings=teacher --set student.max_length=64 --set student.head_hidden=128
  --set student.bilstm.hidden_size=64 --set student.bilstm.projection_size=128 --set student.bilstm.output_size=256
  --set train.lr=2e-3 --set train.schedule=linear"
layers3="--epochs 3 --set student.transformer.layers=3 --set student.transformer.init=teacher
  --set student.transformer.take=uniform --set student.transformer.pooling=mean --set student.head_hidden=0
  --set train.lr=1e-4 --set train.optimizer=adamw"
case $3 in
  teacher)
    run teacher refine $rows --limit 500 --teacher minilm --epochs 10 --lr 5e-5 ;;
  bilstm)
    run bl-distilled distill mkd-lstm $rows $much $bilstm
    run bl-labels distill mkd-lstm $rows $few $bilstm --set supervision=labels
    run bl-distilled-500 distill mkd-lstm $rows $few $bilstm ;;
  transformer)
    run t3-distilled distill mkd-transformer $rows $much $layers3
    run t3-labels distill mkd-transformer $rows $few $layers3 --set supervision=labels
    run t3-distilled-500 distill mkd-transformer $rows $few $layers3 ;;
esac
