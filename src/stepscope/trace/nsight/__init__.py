"""Nsight Systems exports (sqlite) into the same tables as Kineto traces: one table per process that used a device.

database        the file opened so that nothing in it can run, its rows in chunks
events          columns of the event table as chunks fill them, process by process
device_rows     kernels, copies, sets, graphs, synchronisation
host_rows       runtime calls, NVTX ranges, the profiler's own time
torch_ranges    what PyTorch writes into the name of an NVTX range
nccl_payload    what NCCL writes behind one
session         clock, machine, devices, ranks
read            the way in
overview        what an export holds, without its events
outside_tool    `.nsys-rep` and `.ncu-rep` through NVIDIA's own programs
"""
