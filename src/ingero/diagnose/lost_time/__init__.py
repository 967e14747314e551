"""When a program was slower than its own baseline, by how much, and which part of a step that time is in."""
