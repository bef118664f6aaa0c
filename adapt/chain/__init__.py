"""Chain files: stages, what they start from, and what they are swept over, in one file."""
