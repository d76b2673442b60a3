"""Peak rates of chips, with the source of every number, and which chip a device's name stands for."""
