"""Numbers to bytes to a decision: the learned pair, its calibration, artefacts and the choice of a plan."""
