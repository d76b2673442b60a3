"""Data parallelism, several ways, side by side: the same gradients by different exchanges, each in one small file.

ddp                one all-reduce per parameter, after backward, one after the other
ddp_individual     the same all-reduces, all started at once after backward
ddp_individual_v2  each started during backward, as soon as its gradient is there
ddp_bucketed       gradients packed into buckets, each bucket started during backward
pytorch_ddp, fsdp2_zero3, fsdp2_zero2, zero1, deepspeed_zero1|2|3    adapters to what others wrote

averaging, start_order  the two ideas that our own ones share
parallel, strategies    what a training loop needs of any of them, and which there are
training                the loop; compare, bucket_sweep, profile_job, slow_rank: the jobs that the ranks run
"""
