"""ELLE: the model grows before each domain. Replay prefers those earlier domains whose loss is still falling."""
