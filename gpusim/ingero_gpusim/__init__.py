"""The simulated GPU of `ingero demo`, compiled: `lib` has its libraries, `programs` what runs on it."""
