#!/usr/bin/env bash
# bench.sh FOLDER [RANKS]: every benchmark on RANKS ranks (2), one JSON file each in FOLDER.
set -uo pipefail
cd "$(dirname "$0")/.."

out=$1
ranks=${2:-2}
mkdir -p "$out"
failed=()
for name in allreduce_by_size resnet50_set small_tensors training_step; do
  echo "== $name, $ranks ranks"
  tools/mpi_run.sh "$ranks" python -m "benchmarks.$name" --json "$out/$name.json" || failed+=("$name")
done
echo "== peers, $ranks ranks"
tools/mpi_run.sh "$ranks" python -m benchmarks.peers --max-bytes 4M --json "$out/peers.json" ||
  failed+=(peers)
echo "== idle_cost, $ranks ranks, then one"
tools/mpi_run.sh "$ranks" python -m benchmarks.idle_cost --json "$out/idle_cost.json" ||
  failed+=(idle_cost)
echo "== recorder_cost, $ranks ranks"
tools/mpi_run.sh "$ranks" python -m benchmarks.recorder_cost --json "$out/recorder_cost.json" ||
  failed+=(recorder_cost)
echo "== checkpoints, $ranks ranks"
tools/mpi_run.sh "$ranks" python -m benchmarks.checkpoints --folder "$out/checkpoints" \
  --json "$out/checkpoints.json" || failed+=(checkpoints)
rm -rf "$out/checkpoints"
python -m benchmarks.training_speed --json "$out/training_speed.json" || failed+=(training_speed)
if ((${#failed[@]})); then
  echo "failed, or missed the goal: ${failed[*]}"
  exit 1
fi
