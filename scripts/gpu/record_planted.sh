#!/bin/sh
# Records every planted program, on a machine with a GPU and torch: scripts/gpu/record_planted.sh OUT [PYTHON]
# Leaves OUT/NAME.perfscope, OUT/NAME.txt (the diagnosis), and a small session OUT/small/NAME.perfscope of each.
set -eu
out=$1
python=${2:-python3}
here=$(dirname "$0")
root=$(cd "$here/../.." && pwd)
mkdir -p "$out/small"
for program in "$here"/planted/*.py; do
    name=$(basename "$program" .py)
    "$python" -m perfscope record --force -o "$out/$name.perfscope" -- "$python" "$program" 5 || echo "$name: status $?"
    "$python" -m perfscope diagnose "$out/$name.perfscope" >"$out/$name.txt" 2>&1 || true
    most=300 seconds=2
    [ "$name" = pcie_full ] && seconds=5  # three means of the link's traffic
    [ "$name" = healthy_gpu ] && most=1800  # long enough for the rules on counters, though it launches all the time
    "$python" "$here/trim_session.py" --force --seconds "$seconds" --max-kb "$most" --rename "$root=/opt/perfscope" \
        "$out/$name.perfscope" "$out/small/$name.perfscope"
done
