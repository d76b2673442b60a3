"""What can be trained in a benchmark, one file each with `build(spec, device, argument) -> Workload`.

gpt                     decoder with grouped queries, a choice of attention kernels and of checkpointing
deepseek                latent attention, routed and shared experts balanced by a bias
mlp                     a stack of linear layers
transformers_config     any Transformers configuration, random weights
torchbench              a model of TorchBench
user_defined            `module:function`
attention, checkpointing, experts, latent_attention     the parts of these models
loader                  which samples each rank gets
"""
