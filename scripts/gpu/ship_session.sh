#!/bin/sh
# Makes the session of `perfscope demo --gpu`, and what docs/gpu.md shows of it, from a recording made on a GPU machine.
# In a virtualenv with the development tools (make install-dev):
#
#     perfscope record -o llm.perfscope -- sh -c "java -cp CLASSES Load 30 hash,alloc & python3 llm.py 150; wait"
#     scripts/gpu/ship_session.sh llm.perfscope [--rename OLD=NEW]...
#
# --rename takes what belongs to the recorded machine out of paths, command lines and names. The one block of docs/gpu.md
# that this can't make again is what `record` printed: copy it by hand. tests/unit/test_demo_gpu.py compares all of it.
set -eu
recording=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
python scripts/gpu/trim_session.py --force --seconds 3 --max-kb 1400 "$@" "$recording" examples/gpu/llm.perfscope
python scripts/page_output.py docs/gpu.md
python scripts/gpu/screenshots.py
