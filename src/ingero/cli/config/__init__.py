"""`ingero config`, and where each value of a setting comes from."""
