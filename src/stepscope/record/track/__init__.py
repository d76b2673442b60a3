"""While training runs: who is late, how fast it goes, what is unusual, and where those numbers are sent.

detector           StragglerDetector: own times exchanged in the background, scored on every rank
exchange           how ranks hear of each other without a collective: the job's store, or files in a folder
tracker            PerformanceTracker: throughput, MFU, memory and alerts over a window of steps
alerts             what is worth a word: a step far longer than usual, memory near its limit, a late rank
sinks              TensorBoard, W&B, MLflow or a function of one's own: the same scalars for all
run_follower       the same numbers from the step logs of `stepscope record`, on rank 0, beside training
"""
