"""Which depth a batch is decoded at, from what is known beside a run about quality (`anydepth evaluate`) and time
(`calibrating/`)."""
