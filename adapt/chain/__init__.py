"""Chain files: several stages in one file, the models that they start from, and the sets that they are swept over."""
