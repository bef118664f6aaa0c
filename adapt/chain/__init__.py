"""Chain files: several stages in one file, with the models they start from and the sets they are swept over."""
