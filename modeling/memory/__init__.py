"""What a model remembers: its value, its file, the cache that keeps it, and what a call reads of it."""
