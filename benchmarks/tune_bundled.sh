#!/usr/bin/env bash
# Tunes the bundled kernels on this machine's GPU with two strategies each and writes the reports.
# The second strategy's finals choose among everything that either measured.
#   benchmarks/tune_bundled.sh OUT [BUDGET] [KERNEL...]
set -euo pipefail
out=$1 budget=${2:-240s}
kernels=("${@:3}")
((${#kernels[@]})) || kernels=(sgemm reduce)
for kernel in "${kernels[@]}"; do
  for strategy in kt:genetic_algorithm optuna:tpe; do
    echo "== $kernel $strategy"
    python3 -m autotune run "$kernel" --effort full --strategy "$strategy" --budget "$budget" --out "$out"
  done
done
