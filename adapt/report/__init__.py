"""The report: from the records of a chain to a page that says what was found."""
