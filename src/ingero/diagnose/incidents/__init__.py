"""From findings to what is reported: merged, grouped, followed while they last, and given one form."""
