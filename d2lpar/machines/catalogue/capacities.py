"""How much memory CUDA reports of an accelerator, in GiB, and where that can be read.

What is sold as 80 GB has 80 GiB, of which a driver keeps 1 to 3 % for itself, and error correction
a sixteenth where it is GDDR. What is left is `total_memory` of torch's device properties
and the "total capacity" of its messages; it differs by up to 0.2 GiB between drivers. Where only
nvidia-smi's total was found: old drivers count alike, and a newer one keeps as much of it as on the
card that is named.
"""

from __future__ import annotations

GIBI = 2**30

_HUB = "https://github.com"
_BEKMAN = f"{_HUB}/stas00/ml-engineering, debug/pytorch.md"
_A10G = f"{_HUB}/meta-pytorch/torchcodec, basic_cuda_example.md of 0.13"
_H100 = f"{_HUB}/vllm-project/vllm/issues/27508"
_H20 = f"{_HUB}/alipay/PainlessInferenceAcceleration, flood/ops/seg_attn.py"
_P100 = f"{_HUB}/mlcommons/training/pull/100"
_V100 = "https://huggingface.co/spaces/xiang-wuu/yolov5, commit ed2c742"
_V100_32 = f"{_HUB}/tensorflow/tensorflow/issues/37162"
_TITAN_RTX = f"nvidia-smi, {_HUB}/lambdal/lambda-tensorflow-benchmark/pull/11"
_RTX_3060 = f"{_HUB}/Kunhao-Liu/StyleGaussian/issues/12"
_RTX_4080 = f"{_HUB}/brainglobe/brainglobe.github.io, cellfinder/troubleshooting/speed-up.md"
_RTX_4070 = f"12282 MiB of nvidia-smi, {_HUB}/meta-llama/llama/issues/466, less as on an RTX 4080"
_RTX_5070 = (
    f"12227 MiB of nvidia-smi, {_HUB}/llm-d/llm-d-deployer/issues/282, less as on an RTX 5080"
)
_RTX_PRO = f"{_HUB}/antirez/ds4/issues/431"

REPORTED: dict[str, tuple[float, str]] = {
    "GeForce GTX Titan X": (11.92, f"{_HUB}/fizyr/keras-retinanet/issues/906"),
    "Titan X (Pascal)": (11.91, f"{_HUB}/microsoft/Bringing-Old-Photos-Back-to-Life/issues/87"),
    "GeForce GTX 1080": (7.93, f"a GTX 1070's: {_HUB}/svip-lab/impersonator/issues/19"),
    "GeForce GTX 1080 Ti": (10.92, f"{_HUB}/BachiLi/redner/issues/97"),
    "Tesla K80, one of its two GPUs": (11.17, f"{_HUB}/YuvalNirkin/fsgan/issues/20"),
    "Tesla K40": (
        11.17,
        f"nvidia-smi, {_HUB}/TeachingUndergradsCHC/modules, openmp/device_select.md",
    ),
    "P100-SXM2-16GB": (15.89, f"a PCIe card's: {_P100}"),
    "P100-PCIE-16GB": (15.89, _P100),
    "Tesla P40": (22.38, _P100),
    "V100-SXM2-16GB": (15.78, _V100),
    "V100-PCIE-16GB": (15.78, f"an SXM2 card's: {_V100}"),
    "V100-SXM2-32GB": (31.72, _V100_32),
    "V100-SXM3-32GB": (31.72, f"an SXM2 card's: {_V100_32}"),
    "Titan V": (11.78, f"{_HUB}/FNNDSC/pl-infantfs, README.md"),
    "Quadro GV100": (31.72, f"{_HUB}/CODARcode/Chimbuko, GPUsupport.md"),
    "GeForce RTX 2070 SUPER": (7.79, f"{_HUB}/xw-hu/Mask-ShadowGAN/issues/14"),
    "GeForce RTX 2080": (
        7.76,
        "nvidia-smi, https://gist.github.com/HeyBanditoz/3a5f0b28c4d00a57580585468d2eb342",
    ),
    "GeForce RTX 2080 Ti": (10.76, f"{_HUB}/JDAI-CV/image-captioning/issues/11"),
    "Quadro RTX 6000": (23.65, f"a Titan RTX's: {_TITAN_RTX}"),
    "Titan RTX": (23.65, _TITAN_RTX),
    "T4-PCIE-16GB": (14.75, f"{_HUB}/NVIDIA/DALI/issues/1813"),
    "GeForce GTX 1660 Ti": (5.81, f"{_HUB}/zhou13/lcnn/issues/23"),
    "GeForce RTX 3060 Laptop": (5.80, f"{_HUB}/JiehongLin/SAM-6D/issues/13"),
    "GeForce RTX 3060": (11.75, _RTX_3060),
    "GeForce RTX 3070": (7.79, f"{_HUB}/ultralytics/yolov5/issues/2510"),
    "GeForce RTX 3080": (9.78, f"{_HUB}/zai-org/CogVideo/issues/34"),
    "GeForce RTX 3080 Ti": (11.77, f"{_HUB}/Oneflow-Inc/oneflow-yolo-doc, 00_chapter/overview.md"),
    "GeForce RTX 3090": (23.69, f"{_HUB}/ultralytics/ultralytics/issues/5359"),
    "GeForce RTX 3090 Ti": (23.55, f"{_HUB}/mathisweil/minihack-ReMDM-planner"),
    "RTX A2000": (11.75, f"an RTX 3060's: {_RTX_3060}"),
    "RTX A4000": (15.61, f"{_HUB}/DengKaiCQ/VGGT-Long/issues/6"),
    "RTX A5000": (23.67, f"{_HUB}/Magicboomliu/Accelerator-Simple-Template/issues/7"),
    "RTX A6000": (47.54, f"{_HUB}/pytorch/ao, prototype/hqq/README.md"),
    "A40-PCIE-48GB": (44.43, f"OpenCL, {_HUB}/nejeoui/MPA-OpenCl, reports/README.md"),
    "A10-PCIE-24GB": (22.06, f"an A10G's: {_A10G}"),
    "A10G-PCIE-24GB": (22.06, _A10G),
    "A30-PCIE-24GB": (23.53, f"{_HUB}/google/RB-Modulation/issues/5"),
    "A100-SXM4-40GB": (39.56, f"{_HUB}/threestudio-project/threestudio/issues/402"),
    "A100-PCIE-40GB": (39.38, f"{_HUB}/vllm-project/vllm/issues/16570"),
    "A100-SXM4-80GB": (79.25, f"{_HUB}/hiyouga/LlamaFactory/issues/8164"),
    "A100-PCIE-80GB": (
        79.15,
        f"{_HUB}/DrishtiShrrrma/mixtral-8x7b-vs-mistral-vs-llama2-english-to-"
        "hinglish-translation, README.md",
    ),
    "GeForce RTX 4060 Ti": (7.62, f"{_HUB}/ShonCamarlinghi/tiger_watch, Host.md"),
    "GeForce RTX 4070": (11.75, _RTX_4070),
    "GeForce RTX 4070 SUPER": (11.75, f"an RTX 4070's: {_RTX_4070}"),
    "GeForce RTX 4070 Ti SUPER": (15.67, f"an RTX 4080's: {_RTX_4080}"),
    "GeForce RTX 4080": (15.67, _RTX_4080),
    "GeForce RTX 4090": (23.64, f"{_HUB}/ali-vilab/VGen/issues/104"),
    "RTX 6000 Ada": (47.48, f"{_HUB}/hengck23/solution-leash-BELKA, src/common.py"),
    "L4-PCIE-24GB": (
        22.16,
        f"23034 MiB of nvidia-smi, {_HUB}/lmstudio-ai/lmstudio-bug-tracker/issues"
        "/1638, less as on an L40S",
    ),
    "L20-PCIE-48GB": (44.53, f"{_HUB}/Tencent-Hunyuan/HunyuanCustom/issues/36"),
    "L40-PCIE-48GB": (44.40, f"{_HUB}/NVlabs/Eagle/issues/68"),
    "L40S-PCIE-48GB": (44.31, f"{_HUB}/vllm-project/vllm/issues/15196"),
    "H100-SXM5-80GB": (79.11, _H100),
    "H100-PCIE-80GB": (79.11, f"an H100's, form not named: {_H100}"),
    "H800-SXM5-80GB": (79.11, f"an H100's: {_H100}"),
    "H100-SXM5-96GB, 500 W": (95.00, f"an H20's: {_H20}"),
    "H100-NVL-94GB": (93.02, f"{_HUB}/vllm-project/vllm/issues/16712"),
    "H20-SXM-96GB": (95.00, _H20),
    "H200-SXM-141GB": (139.80, _BEKMAN),
    "H200-NVL-141GB": (139.80, f"an H200's: {_BEKMAN}"),
    "GH200-96GB": (94.50, f"{_HUB}/stas00/ml-engineering/pull/60"),
    "GH200-141GB": (139.80, f"an H200's: {_BEKMAN}"),
    "B200-SXM-180GB": (178.35, _BEKMAN),
    "GB200-186GB": (184.31, f"{_HUB}/vllm-project/vllm/issues/43951"),
    "B300-SXM-288GB": (267.68, f"OpenCL, {_HUB}/nejeoui/MPA-OpenCl, reports/README.md"),
    "GB300-288GB": (276.50, _BEKMAN),
    "RTX PRO 6000 Blackwell": (94.97, _RTX_PRO),
    "RTX PRO 6000 Blackwell Max-Q": (94.97, f"an RTX PRO 6000's: {_RTX_PRO}"),
    "GeForce RTX 5070": (11.60, _RTX_5070),
    "GeForce RTX 5070 Ti Laptop": (11.60, f"an RTX 5070's: {_RTX_5070}"),
    "GeForce RTX 5080": (15.47, f"{_HUB}/neoluxis/anti-detr-x, docs/rtdetr-nan_repair.md"),
    "GeForce RTX 5090": (31.37, f"{_HUB}/Wan-Video/Wan2.1/issues/465"),
    "MI300X-192GB": (191.98, f"{_HUB}/ROCm/legacy-rocm-build/issues/4203"),
    "MI325X-256GB": (255.98, f"{_HUB}/vllm-project/vllm/issues/41962"),
}
