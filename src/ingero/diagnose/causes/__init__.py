"""One folder for each subject; in it one file for each cause (`RULE`) and the helpers that only these use."""
