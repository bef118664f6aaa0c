"""Helpers that all packages may use: errors, versions, redaction of credentials, and names of columns and files."""
