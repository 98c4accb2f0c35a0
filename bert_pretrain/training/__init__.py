"""The step, the loop over the phases, checkpoints and resuming."""
