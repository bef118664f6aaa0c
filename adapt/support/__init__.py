"""Helpers that all packages may use: errors, versions, paths, redaction of credentials, names of columns and files."""
