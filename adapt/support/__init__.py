"""Helpers that all packages may use: errors, versions, redaction of credentials, names of columns and files."""
