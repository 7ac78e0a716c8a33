"""Launches of generated kernels, planned without tensors: see `plan.LaunchPlan`."""
