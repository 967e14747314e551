"""The dashboard: a recording in the browser, as an HTTP API and a page on top of it."""
