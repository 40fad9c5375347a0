"""All targets."""

from . import files, targets, wires

TARGETS = (*targets.TARGETS, *wires.TARGETS, *files.TARGETS)
