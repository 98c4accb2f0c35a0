"""What a person and a program see of a run."""
