"""A simulated GPU: the CUDA, NCCL and NVML libraries as timelines, built from C at test time.

`build` makes libcuda.so.1, libcudart.so.11.0/.12/.13, libnccl.so.2 and libnvidia-ml.so.1 with the exported names of the
real ones; `knobs` disturbs them while they run; `truth` reads what they saw. A kernel takes the time that its name says
(`name#ns=40000`), a copy its bytes over the bandwidth; device time never depends on how busy the host is.
"""
