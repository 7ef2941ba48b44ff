"""`python -m tidelog`."""

from tidelog.cli.main import main

main()
