"""The live loop: rings are drained, kernel maps read each second, records handed to the writer."""
