"""What ran on the device: kernels and operators, the work each of them did, and how much of the chip they used."""
