"""What programs reach of a machine's peaks: the constants that hold for every machine.

The numbers that were adjusted to published results are here, and by architecture in
`product_rates`; rows of `d2lpar/validation/published.csv` that they were adjusted to name them. One
is a hypothesis without a source of its own: `hides` of chips for graphics, in `product_rates`.
"The textbook's table" is that of d2l.ai, Automatic Parallelism: 50 products of 4000 x 4000 matrices
take 0.4608 s, copying the results (3.2 GB) to the CPU takes 2.3504 s, both with non_blocking=True
1.7703 s.
"""

# Share of the peak rate that matrix products reach on ordinary cores while all multiprocessors are
# busy. Fitted on the first row of the textbook's table: 13.9 of 15.7 TFLOP/s, of which waves of
# tiles take 6.1 %.
MATMUL_EFFICIENCY = 0.9535

# The same where a multiprocessor has 128 lanes of fp32 in place of 64: with 8 x 8 results a thread
# they ask for all that shared memory gives, 128 bytes a cycle, and share their issue with what
# fetches. 29.2 of 40.1 TFLOP/s on an RTX 4070 Ti (Yinghan-Li/YHs_Sample, issue 4), 0.94 on an A100.
WIDE_PLAIN_EFFICIENCY = 0.78

# What convolutions reach of a product's rate, as they gather what they multiply. Fitted on a
# published training step on a V100 in fp32: ResNet-50 (363.7 images/s, batch 128, MXNet), which is
# mostly direct convolutions and memory traffic. Of 746 direct ones of 3 ms and more on T4, A100 and
# P100 the median is right within 10 % on each card (sitar-lab/NeuSight, 2024); 108 on V100 are a
# third faster.
CONVOLUTION_EFFICIENCY = 0.76

# The same by tensor cores that do 1,024 FLOP in a cycle of a multiprocessor, half of an A100's, for
# which 0.76 holds as well: what gathers (an address for each 16 bytes) takes as many cycles and so
# half the share, 1 / (1 + (1 / 0.76 - 1) / 2). On ordinary cores an A100's convolutions reach 0.85
# of a product's rate, by tensor cores less (CUTLASS 2.4, profiler.md: 14.6 of 17.2 TFLOP/s, 125 of
# 235).
SMALL_TENSOR_CONVOLUTION_EFFICIENCY = 0.86

# What the two forms of Winograd's algorithm reach: the multiplications of the fused one of a
# product's rate, the transforms of the memory's. Fitted on convolutions in fp32 on V100 and T4 that
# cuDNN 8.9 computed so in 1 ms and more (sitar-lab/NeuSight, 2024): 1,326 fused and 3,193 apart,
# off by 5 to 13 % in the median. On A100 and P100 it leaves the latter a quarter too fast.
WINOGRAD_FUSED, WINOGRAD_TRANSFORMING = 0.85, 0.45

# Share of the peak that products reach on Kepler: see `product_rates`.
KEPLER_PLAIN_EFFICIENCY = 2 / 3

# Share of the peak bandwidth that streaming kernels reach. Fitted on a copy within a V100 (739.8 of
# 900 GB/s) and on BabelStream's triad on a K80 (203.4 of 240 GB/s).
MEMORY_EFFICIENCY = 0.86

# The same if they only read: the bus need not turn round. BabelStream's dot on A100, H100 and H200:
# 1.75 of 2.04, 3.18 of 3.35, 4.48 of 4.80 TB/s (Azure, AI-benchmarking-guide, 2024).
READ_EFFICIENCY = 0.91

# Share of the cache's peak bandwidth (bytes a cycle that its slices send) that kernels reach:
# requests meet in slices and crossbars. Assumed: no row that may be fitted measures it.
CACHE_EFFICIENCY = 0.60

# What tensor cores sustain in fp8 of what they sustain in 16 bits, as a share of the peak: an FLOP
# takes a little more than half the energy. 0.70 on H100 (Azure: 1377 of 1979 TFLOP/s) to 0.75.
FLOAT8_POWER = 0.93

# FLOP a cycle of a multiprocessor in products whose rows are not aligned to 16 bytes: threads fetch
# one number with an instruction, in kernels of Turing that cuBLAS has for them on later GPUs, too
# (`align1`), or two, in kernels of Ampere (`align2`). What else a GPU can do is of little use.
# In bf16, by one: 71 to 115 TFLOP/s on H100, by waves of tiles (float8_experimental, pull request
# 145), 96 and 99 on H200 (maxliu, FastWAM, GEMM by alignment, 2026), 54 to 74 on a GA102 of 84
# multiprocessors (slinoss, kernel notes, 2026). By two: 98 on an H100 at 1.2 GHz (m87-labs/kestrel,
# pull request 143), and 1.4 times what one gives (ESMFold2's triangles on H100).
NARROW_FLOPS_A_CYCLE = {1: 450, 2: 700}

# What Turing reaches of that. Fitted on 10.4 TFLOP/s by one on a T4, where aligned rows reach 24.6
# (winterstar67, Kernel Investigation, 2026); its 70 W last for half of its clock. Of Volta and of
# Blackwell no figure was found: they are taken to be as Ampere and Hopper are.
NARROW_ON_TURING = 0.4

# A product begins to multiply when the first tiles have come from memory, and ends when the last
# result is written (about 1 µs each way through the cache); between two tiles of a multiprocessor
# others of it hide most of that. Fitted on 1024³ on A100 and H100 (Azure: 119.4 and 274.1 TFLOP/s).
FILL_S = 1.2e-6
REFILL_S = 0.5e-6

# Cycles of a read from memory whose address the thread has just read, or with which its next turn
# waits. On A100, 1.41 GHz, the loss of 16,384 rows takes 0.56 ms beside the traffic of its softmax,
# its gradient 0.29 ms (Liger-Kernel, benchmark data of 2024, 4,096 and 8,192 columns): one block of
# 32 threads, so 512 turns of two such reads, and of one: 0.55 µs each. It goes with the clock, as
# the way to memory does: a warp that is alone waits for 437 cycles on V100, 574 on A100, 658 on
# H100 and 632 on L40, whose clocks are 1.38 to 2.49 GHz (te42kyfo/gpu-benches, gpu-latency).
SERIAL_READ_CYCLES = 775

# The same from the cache: batch norm of 2 channels of 1.4 million numbers in fp16 takes 0.34 ms on
# A100, by 1,372 reads, its gradients of 0.26 million 0.18 ms by 683 (xwang233/code-snippet,
# batchnorm3d-channels-last, 2021). A warp that is alone waits for 215 cycles on V100 and A100.
CACHED_READ_CYCLES = 350

# Numbers that a thread of cuDNN's batch norm has on its way at a time: of images, and backward of
# images and gradients. Fitted on 2 channels of 22.5 million numbers in fp16 on A100: 12.5 and, less
# the sum of gradients, 33.3 ms (there).
NORM_FORWARD_AT_ONCE, NORM_BACKWARD_AT_ONCE = 4, 3

# The exponent with which traffic hides behind such waiting: 64 channels of 22.5 million numbers
# take 15.7 ms on A100, where 2 take 12.5, and the traffic of all is 6.2; of 2.1 million 1.69 on
# V100, with 1.03 and 1.02 (there).
WAITING_HIDES = 1.4

# Fresh host memory: the system finds, clears, maps and (if it is asked to) locks its pages. Fitted
# on the third row of the textbook's table: its copies wait for 50 new page-locked blocks of 2**26
# bytes, which the host obtains while the products run.
PAGE_LOCK_BYTES_PER_S = 1.90e9

# The host's own copying between a pageable tensor and the driver's page-locked buffer, where its
# rate is not known (`Host.copy_bytes_per_s`). Fitted on the second row: 50 results cross the link
# while the host copies on what came before, into fresh memory.
PAGEABLE_BYTES_PER_S = 4.9e9

# Pieces in which the driver sends what goes through the host's memory, one on its way while the
# host, or another engine, works at the next. Fitted on 4 MB from pageable memory: 394 µs, and 316
# if the call need not wait for the last piece (Moens, "A guide on good usage of non_blocking and
# pin_memory() in PyTorch", 2024): 78 µs at 24 GB/s.
STAGED_PIECE_BYTES = 2**20 * 7 // 4

# --- fused attention (`attention_cost`) -----------------------------------------------------------

# Share of the rate of tensor cores, while the products of FlashAttention 2 and of cuDNN run, and
# the time beside products that other work takes for a score, in times of its exponential. Fitted on
# FlashAttention 2 with heads of 64, on an RTX A5000 (81.9 TFLOP/s forward, 77.4 backward:
# gpu-mode/ring-attention, issue 10) and an A100 (179.5 both: Azure AI-benchmarking-guide).
ATTENTION_PRODUCTS = 0.85
ATTENTION_EXPOSED_FORWARD, ATTENTION_EXPOSED_BACKWARD = 0.8, 2.6

# The same share for kernels made for Ampere on Hopper and newer: they multiply by mma.sync, and
# only wgmma reaches the rate of Hopper's tensor cores. Fitted on FlashAttention 2 with heads of 128
# on H100 and H200 (327.9, 329.3 TFLOP/s: Azure AI-benchmarking-guide).
ATTENTION_BY_MMA = 0.41

# What of FlashAttention 2's rate the backward pass of `flex_attention` reaches (He et al.,
# "FlexAttention: The Flexibility of PyTorch with the Performance of FlashAttention", 2024). Its
# forward pass reaches 0.9 of it there, up to 1.14 in pytorch/benchmark's pull request 2443, and
# is taken to reach all.
FLEX_BACKWARD = 0.85

# The same for the memory-efficient kernels, which CUTLASS makes of templates: by tensor cores that
# load in the background (Ampere and newer), by those that do not, without any. Fitted in fp16 and
# fp32 with heads of 64 and 128, on an A100 (xformers, issue 712) and a V100 (pull request 439).
EFFICIENT_AMPERE, EFFICIENT_VOLTA, EFFICIENT_PLAIN = 0.46, 0.32, 0.73
EFFICIENT_EXPOSED = 3.0

# What of that share their backward pass reaches, by whether numbers have 16 bits. Fitted on an
# A100: with heads of 64 and 128 (xformers, issue 712), in fp32 with 64 (pull request 393).
EFFICIENT_BACKWARD = {True: 0.39, False: 0.60}
