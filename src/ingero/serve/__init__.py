"""What is stored, rendered or published."""
