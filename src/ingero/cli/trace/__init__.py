"""`ingero trace`: what is planned, recorded, shown and said at the end."""
