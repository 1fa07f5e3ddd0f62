"""One module per kind of tracked object."""
