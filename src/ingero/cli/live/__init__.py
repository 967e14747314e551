"""The live view of `trace`: seconds gathered in a window become a state, the state lines, the lines a screen."""
