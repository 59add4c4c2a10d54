"""`mlx-gateway VERB`: reads the command line and hands over to the verb."""

from __future__ import annotations

import sys

from gateway.cli import parse


def main() -> int:
    """The exit code of the verb; see `mlx-gateway VERB --help`."""
    args = parse(sys.argv[1:])
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
