"""Entry point of the `perfscope` command and of `python -m perfscope`."""

import sys


def main() -> None:
    try:
        from perfscope.cli import run

        status = run()
    except KeyboardInterrupt:  # while it was still being loaded
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
