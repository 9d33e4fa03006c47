"""What programs reach of a machine's peaks: the constants that hold for every machine.

At most six numbers in the whole package are adjusted to published results; all of them are here,
and the rows of `d2lpar/validation/published.csv` that they were adjusted to name them.
"The textbook's table" is that of d2l.ai, Automatic Parallelism: 50 products of 4000 x 4000 matrices
take 0.4608 s, copying the results (3.2 GB) to the CPU takes 2.3504 s, both with non_blocking=True
1.7703 s.
"""

# Share of the peak rate that matrix products reach while all multiprocessors are busy. Fitted on
# the first row of the textbook's table: 13.9 of 15.7 TFLOP/s, of which waves of tiles take 2.3 %.
MATMUL_EFFICIENCY = 0.9077

# The same for convolutions, which gather what they multiply, or transform it first. Fitted on two
# published training steps on a V100 in fp32: ResNet-50 (363.7 images/s, batch 128, MXNet), whose
# time is mostly that of direct convolutions and of memory, and VGG-16 (83.5 ms, batch 16), where
# it is that of Winograd's algorithm.
CONVOLUTION_EFFICIENCY = 0.70

# Share of the peak bandwidth that streaming kernels reach. Fitted on a copy within a V100 (739.8 of
# 900 GB/s) and on BabelStream's triad on a K80 (203.4 of 240 GB/s).
MEMORY_EFFICIENCY = 0.86

# Fresh host memory: the system finds, clears, maps and (if it is asked to) locks its pages. Fitted
# on the third row of the textbook's table: its copies wait for 50 new page-locked blocks of 2**26
# bytes, which the host obtains while the products run.
PAGE_LOCK_BYTES_PER_S = 1.90e9

# The host's own copying between a pageable tensor and the driver's page-locked buffer. Fitted on
# the second row: 50 results cross the link, are copied on by the host, into fresh memory.
PAGEABLE_BYTES_PER_S = 8.0e9
