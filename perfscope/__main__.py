"""Entry point of the `perfscope` command and of `python -m perfscope`."""

import sys


def main() -> None:
    from perfscope.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
