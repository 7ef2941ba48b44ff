"""The entry point: `--version` answers before anything is imported, everything else goes to the commands in `app.py`."""

from __future__ import annotations

import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from tidelog.cli.version import tidelog_version

        print(f"tidelog {tidelog_version()}")
        return
    from tidelog.cli.app import app

    app(args=arguments, prog_name="tidelog")


if __name__ == "__main__":
    main()
