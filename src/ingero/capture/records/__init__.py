"""Records of the kernel that become rows."""
