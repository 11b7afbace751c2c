"""Feature engineering: statistics that merge, steps that use them, and the passes over the data that they need."""
