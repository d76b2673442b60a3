"""Sweeps over one choice at a time: every variant measured in turn, checked against the first, ended with advice.

sweep               the words: Sweep, Variant, Tolerance; which sweeps there are
batch_size, precision, attention, checkpointing, compile, dataloader, allocator, accumulation, offload, strategy
                    one list of variants each; the first is what the others are compared with
child               in the process of its own: builds each variant, checks and measures it
train_step, cuda_graph, host_offload, sketch, host_memory, compiler_caches      what a variant's step is made of
rank_step, rank_samples     the step that several ranks take together, and what they measured as one
rows                what was measured, as a results document
control             starts such processes, and goes on without a variant that crashed or hung
sessions            one launch after the other, on ranks of our own or on a launcher's
fitting             which batch sizes fit into memory
"""
