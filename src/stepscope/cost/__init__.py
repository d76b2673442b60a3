"""What things should cost: peak rates of chips, FLOPs and bytes of operators and models. Formulas, no traces.

chip_table, hardware.toml   rows of the hardware table, ours and a user's, each with its source; hardware.json is made
                            from it
hardware                    which chip a device is, and the peak that MFU is measured against
families                    kinds of device work; the cost of one operator call
operators                   recorded operator -> cost; counting each piece of work once
recorded_inputs             shapes and types as the profiler writes them
matrix_products, attention, convolution, memory_traffic     the formulas behind `operators`
kernel_names, tensor_core_names                             what a kernel's name tells
name_patterns               many patterns asked of a name at little cost
model_flops                 FLOPs per token of transformers from their shape
model_parameters            their weights, whole and on one rank; a shape from a config.json
parallel_layout             ranks along each dimension, precision, optimizer: the terms of the following
memory, memory_activations  memory of a training step by category and moment
alpha_beta, alpha_beta_pieces       latency and bandwidth through measured times, one line or several
calibration, calibration_*          a machine's collectives: points, curves, other world sizes, their file
collective_time             ring, tree and hierarchical algorithms on given links
strategy_cost, strategy_*   what strategies communicate, by formula or from a simulated step, and its time
"""
