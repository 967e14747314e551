"""A recording's report as one HTML file for a ticket: nothing is loaded, nothing runs, every text is foreign."""
