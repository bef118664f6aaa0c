"""What every part may use: errors, versions, hidden credentials, names of columns and files."""
