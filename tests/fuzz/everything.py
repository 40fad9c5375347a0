"""All targets."""

from . import targets, wires

TARGETS = (*targets.TARGETS, *wires.TARGETS)
