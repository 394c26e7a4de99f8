"""As sync_in_loop, but the host needs longer between two steps than the GPU for one: it starves without reads, too.

Expected: sync-in-loop and launch-bound, each with its own part of the idle time.
"""

import sys

from sync_in_loop import main

if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0, rows=8_192, turns=12_000)
