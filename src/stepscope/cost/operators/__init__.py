"""What one operator or kernel should cost: FLOPs and bytes from recorded shapes, and families told by names."""
