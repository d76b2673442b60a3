"""Sweeps over one choice at a time: every variant measured in turn, checked against the first, ended with advice.

sweep               the words: Sweep, Variant, Tolerance; which sweeps there are
batch_size, precision, attention, checkpointing, compile, dataloader, allocator, accumulation, offload
                    one list of variants each; the first is what the others are compared with
child               in the process of its own: builds each variant, checks and measures it
train_step, cuda_graph, host_offload, sketch, host_memory, compiler_caches      what a variant's step is made of
rows                what was measured, as a results document
control             starts such processes, and goes on without a variant that crashed or hung
fitting             which batch sizes fit into memory
"""
