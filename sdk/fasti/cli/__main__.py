"""`python -m fasti.cli`."""

from . import main

main()
