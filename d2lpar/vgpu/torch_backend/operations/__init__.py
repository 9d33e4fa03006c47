"""One operation of torch: dispatched, computed, priced and queued."""
