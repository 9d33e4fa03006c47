"""Models and schedules of parallel training: pipelines, scaling, and mixes of them."""
