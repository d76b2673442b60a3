"""Every step timed, profiled or not: regions, the device's time, the log (also read as it grows), its statistics."""
