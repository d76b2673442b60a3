"""What a collective should take: closed forms by algorithm, and curves fitted to measurements (a calibration)."""
