"""`python -I -m cw_snapshot.cli`."""

from cw_snapshot.cli.entry import main

main()
