#!/bin/sh
# Starts a training, or goes on with it, for whoever starts it again: train.service, jobset.yaml, pytorchjob.yaml.
# Exit code 75 (EX_TEMPFAIL), or REQUEUE_CODE: a signal has stopped it, and it is saved; start it again.
#
#     train.sh [WORD...]         words after the training's own
#
# OUTPUT, LOCKSTEP, REQUEUE_CODE and RUN (words of `lockstep run`) in the environment replace what stands here.
set -u
output=${OUTPUT:-runs/train}
lockstep=${LOCKSTEP:-lockstep}
if [ -e "$output/checkpoints/last" ]; then set -- --resume "$@"; fi
rm -f "$output/requeue"

# shellcheck disable=SC2086  # several words
"$lockstep" run ${RUN:---nproc-per-node cpu} "$lockstep" train mnist --data digits --output "$output" "$@" &
training=$!
trap 'kill -TERM "$training"' TERM
trap 'kill -USR1 "$training"' USR1
# A signal to this shell ends a wait, too.
wait "$training"
code=$?
while kill -0 "$training" 2>/dev/null; do
  wait "$training"
  code=$?
done

if [ -e "$output/requeue" ]; then exit "${REQUEUE_CODE:-75}"; fi
exit "$code"
