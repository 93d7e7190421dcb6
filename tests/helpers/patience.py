"""How long tests wait for other processes: a guard against what hangs, and no measure of speed, for machines are busy."""

PATIENCE = 840.0  # seconds; a whole test has a minute more (`timeout` in pyproject.toml)
