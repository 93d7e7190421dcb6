"""What a model remembers, one kind of memory a file."""
