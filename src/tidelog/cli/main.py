"""The entry point: `--version` answers before anything is imported, everything else goes to the commands in `app.py`."""

from __future__ import annotations

import gc
import sys

from tidelog import __version__


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        print(f"tidelog {__version__}")
        return
    gc.disable()  # modules are no garbage, and looking for some among them takes time
    from tidelog.cli.app import app

    gc.enable()
    app(args=arguments, prog_name="tidelog")


if __name__ == "__main__":
    main()
