"""The `tokencodes` command, outside the package, so that three things precede its slow imports: how
threads wait, Ctrl-C, and streams that no reader can break.
"""

import os
import sys


def main() -> None:
    """Entry point of the installed command."""
    # OpenMP's threads spin at each barrier unless told otherwise; beside another busy process that
    # costs several times as much.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from tokencodes.streams import settle_streams

        settle_streams()
        from tokencodes.cli import main as run
    except KeyboardInterrupt:
        print("tokencodes: interrupted before anything was begun", file=sys.stderr)
        sys.exit(130)
    run()
