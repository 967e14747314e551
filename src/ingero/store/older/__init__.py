"""Recordings of earlier builds and of Ingero 0.8 to 0.17, read in today's words."""
