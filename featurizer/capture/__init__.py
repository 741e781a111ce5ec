"""Capture a step as CUDA would run it. The only place that traces, and the only one here that needs torch."""
