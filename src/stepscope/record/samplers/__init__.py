"""What is measured beside the steps: telemetry of the device, NCCL's own log, and which samplers a recording has."""
