"""Settings that only one kind of plan has. It needs no torch, as a command is to refuse at once."""

OF_TRAINING = ("zero", "recompute", "compiled", "optimizer", "pipeline")
OF_INFERENCE = ("new", "eager")
