#!/bin/sh
# Measures the planted kernels on a machine with a GPU, nvcc and ncu: scripts/gpu/ncu_planted.sh OUT [PYTHON]
# Takes at most 110 s. A step that fails or takes too long is said and passed over. Leaves in OUT (about 2 MB):
#   planted.ncu-rep.gz, planted_raw.csv.gz      the report, and ncu's own export of it (test data)
#   alone.json, both.json                       the diagnoses of --ncu=only, and of a recording with its second run
#   alone.session.json, both.session.json       how those went; *.log is what ncu said
#   reader.txt                                  launches and metrics by NVIDIA's reader and by ncu's export
#   filter.txt                                  which launches each of ncu's ways to filter measures
#   cut.txt                                     what is left of a run that is stopped after 4 s
set -u
out=$1
python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ends=$(($(date +%s) + 105))

# step SECONDS NAME COMMAND...: the command within its time and what is left of the whole.
step() {
    limit=$1 name=$2
    shift 2
    left=$((ends - $(date +%s)))
    [ "$left" -gt "$limit" ] || limit=$left
    if [ "$limit" -lt 2 ]; then
        echo "$name: no time left" >&2
        return
    fi
    before=$(date +%s)
    timeout -k 3 "$limit" "$@"
    echo "$name: exit status $? after $(($(date +%s) - before)) s" >&2
}

# keep NAME: what there is of a session that was recorded, or of one that was given up.
keep() {
    for session in "$work/$1.perfscope" "$work/$1.perfscope.partial"; do
        [ -d "$session" ] || continue
        cp "$session/session.json" "$out/$1.session.json" || true
        cp "$session/raw/ncu/log.txt" "$out/$1.log" || true
        cp "$session/raw/ncu/output.txt" "$out/$1.output" 2>/dev/null || true
    done
}

step 30 nvcc nvcc -O2 -arch=native -o "$work/ncu_planted" "$here/ncu_planted.cu"

step 40 alone "$python" -m perfscope record --ncu=only --ncu-limit 30 -o "$work/alone.perfscope" -- "$work/ncu_planted" 2
keep alone
report=$(find "$work" -path '*alone*' -name report.ncu-rep | head -n 1)
if [ -n "$report" ]; then
    gzip -9nc "$report" >"$out/planted.ncu-rep.gz"
    step 15 export ncu --import "$report" --csv --page raw --print-kernel-base mangled >"$work/raw.csv"
    gzip -9nc "$work/raw.csv" >"$out/planted_raw.csv.gz"
    step 20 readers "$python" "$here/ncu_readers.py" "$report" >"$out/reader.txt" 2>&1
fi
step 15 "diagnose alone" "$python" -m perfscope diagnose "$work/alone.perfscope" --format json >"$out/alone.json"

step 45 both "$python" -m perfscope record --ncu --ncu-limit 25 -o "$work/both.perfscope" -- "$work/ncu_planted" 12
keep both
step 15 "diagnose both" "$python" -m perfscope diagnose "$work/both.perfscope" --format json >"$out/both.json"

for filter in "--kernel-id :::1" "--kernel-id ::regex:^(column_walk|padded_walk)\$:^(2|3)\$" \
    "--filter-mode per-launch-config --launch-count 1"; do
    echo "== $filter" >>"$out/filter.txt"
    # shellcheck disable=SC2086
    step 15 "filter $filter" ncu --clock-control none --metrics gpu__time_duration.sum $filter "$work/ncu_planted" 4 \
        >"$work/filter.txt" 2>&1
    grep -E '^ +[a-z_]+.*\([0-9]+, [0-9]+, 1\)x|==ERROR|==WARNING' "$work/filter.txt" >>"$out/filter.txt"
done

step 25 cut "$python" -m perfscope record --ncu=only --ncu-limit 4 -o "$work/cut.perfscope" -- "$work/ncu_planted" 200 \
    >"$out/cut.txt" 2>&1
keep cut
ls -l "$out"
