#!/bin/sh
# Measures the planted kernels on a machine with a GPU, nvcc and ncu: scripts/gpu/ncu_planted.sh OUT [PYTHON]
# Leaves in OUT (about 1 MB): planted.ncu-rep.gz and planted_raw.csv.gz (test data), planted.json (the diagnosis of a
# recording with its second run), alone.json (of --ncu=only), ncu.log, and what ncu does when it is interrupted.
set -eu
out=$1
python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc -O2 -arch=native -o "$work/ncu_planted" "$here/ncu_planted.cu"

"$python" -m perfscope record --ncu=only -o "$work/alone.perfscope" -- "$work/ncu_planted" 2
"$python" -m perfscope diagnose "$work/alone.perfscope" --format json >"$out/alone.json"
gzip -9nc "$work/alone.perfscope/raw/ncu/report.ncu-rep" >"$out/planted.ncu-rep.gz"
ncu --import "$work/alone.perfscope/raw/ncu/report.ncu-rep" --csv --page raw | gzip -9nc >"$out/planted_raw.csv.gz"

"$python" -m perfscope record --ncu -o "$work/both.perfscope" -- "$work/ncu_planted" 12
"$python" -m perfscope diagnose "$work/both.perfscope" --format json >"$out/planted.json"
cp "$work/both.perfscope/raw/ncu/log.txt" "$out/ncu.log"
cp "$work/both.perfscope/session.json" "$out/session.json"

# What is left of a pass that is cut short: a report of what was measured so far, or none.
"$python" -m perfscope record --ncu=only --ncu-limit 4 -o "$work/cut.perfscope" -- "$work/ncu_planted" 200 \
    >"$out/cut.txt" 2>&1 || echo "status $?" >>"$out/cut.txt"
cat "$work/cut.perfscope/raw/ncu/log.txt" >>"$out/cut.txt" 2>/dev/null || true
ls -l "$out"
