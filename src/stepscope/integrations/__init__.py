"""In the job: the recorder inside Accelerate, Transformers, Lightning and DeepSpeed loops."""
