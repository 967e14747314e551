"""A recording's report as one HTML file for a ticket: it loads nothing, runs nothing, and trusts no text."""
