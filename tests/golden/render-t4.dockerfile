# The environment `t4` without envbuilder: PyTorch 1.13 with CUDA 11.2 and gcc 9 for T4 nodes
#
#   docker buildx build --file THIS_FILE --tag t4 --build-arg SOURCE_DATE_EPOCH=1795219200 FOLDER_OF_THE_RECIPE
#
# Every package is fetched by its sha256. Where the network is behind a proxy that looks into TLS, add
# `--secret id=ca,src=FILE_OF_CERTIFICATES`. What lies in a folder already is taken from there with
# `--build-context artifacts=FOLDER`. The same time for each file: `--output type=oci,dest=FILE,rewrite-timestamp=true`.
#
# hadolint global ignore=DL3003,DL3008,DL3009,DL3067,DL4006,SC3040
# Why those: each step is one script of bash that sets pipefail itself and goes where it works; the workshop's own packages
# come into no image, so none is pinned or tidied away; the last stage takes the whole of the root that was made for it.

# The workshop: any image with apt and dpkg. Nothing of it comes into the image.
ARG BASE=debian:bullseye
# PyTorch's own indexes, for builds that the package index does not have.
ARG PYTORCH_INDEX="https://index.example/pytorch"
# Addresses of mirrors and of a package index; empty: those that the workshop's apt and uv know by themselves.
ARG DEBIAN_MIRROR=
ARG DEBIAN_SECURITY=
ARG UBUNTU_MIRROR=
ARG CUDA_REDIST=
ARG PYTHON_MIRROR=
ARG INDEX=

# Files that need not be fetched: `--build-context artifacts=FOLDER` takes the place of this empty stage.
FROM scratch AS artifacts

# The workshop's tools.
FROM ${BASE} AS workshop
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts <<'SCRIPT'
#!/bin/bash
set -euo pipefail
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi
done
export DEBIAN_FRONTEND=noninteractive
if ! { command -v curl >/dev/null && python3 -m pip --version >/dev/null 2>&1; }; then
  apt-get update && apt-get install --yes --no-install-recommends ca-certificates curl python3-pip
fi
offline=
for file in /artifacts/uv-*.whl; do [ ! -e "$file" ] || offline=--no-index; done
mkdir /kit
PIP_ROOT_USER_ACTION=ignore python3 -m pip download --quiet --disable-pip-version-check --no-deps --find-links /artifacts $offline --dest /kit/wheel uv==1.2.3
python3 -m zipfile --extract /kit/wheel/uv-*.whl /kit/wheel
mv /kit/wheel/uv-*.data/scripts/uv /kit/uv && chmod 755 /kit/uv && rm -r /kit/wheel
SCRIPT

# The programs that the stages below run.
FROM workshop AS kit
RUN --network=none <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}

file 644 /kit/configure_os.sh <<'END'
|the program configure_os.sh
END

file 644 /kit/compile_all.py <<'END'
|the program compile_all.py
END

file 644 /kit/check_byte_code.py <<'END'
|the program check_byte_code.py
END

file 644 /kit/install_toolkit.py <<'END'
|the program install_toolkit.py
END

file 644 /kit/extensions.py <<'END'
|the program extensions.py
END

file 644 /kit/extension.py <<'END'
|the program extension.py
END

file 644 /kit/gpu_code.py <<'END'
|the program gpu_code.py
END

file 644 /kit/capture_calls.py <<'END'
|the program capture_calls.py
END

file 644 /kit/compile_call.py <<'END'
|the program compile_call.py
END

file 644 /kit/sitecustomize.py <<'END'
|the program sitecustomize.py
END

file 644 /kit/steady.c <<'END'
|the program steady.c
END

file 644 /kit/no_comment.ld <<'END'
|the program no_comment.ld
END

file 644 /kit/extensions/spec.json <<'END'
|{
| "gpus": [
|  "7.5"
| ],
| "parts": [
|  [
|   "extension-0",
|   "load"
|  ]
| ]
|}
END

file 644 /kit/extension-0/spec.json <<'END'
|{
| "archive": false,
| "call": {
|  "cpp_sources": [],
|  "cuda_sources": [],
|  "extra_cflags": [],
|  "extra_cuda_cflags": [],
|  "extra_include_paths": [],
|  "extra_ldflags": [],
|  "function": "load",
|  "functions": "null",
|  "is_python_module": true,
|  "is_standalone": false,
|  "name": "fused",
|  "others": "{}",
|  "sources": [
|   "/space/src/fused/fused_bias_act.cpp",
|   "/space/src/fused/fused_bias_act_cpu.cpp",
|   "/space/src/fused/fused_bias_act_cuda.cpp",
|   "/space/src/fused/fused_bias_act_kernel.cu"
|  ],
|  "with_cuda": true,
|  "with_pytorch_error_handling": true
| },
| "env": [],
| "files": {
|  "fused/fused_bias_act.cpp": "730188a60651797a76a0d31794634974eb66926b68dd0f43dbf23adeda9fa268",
|  "fused/fused_bias_act_cpu.cpp": "fb5686503478635701958c7ad954567c9ce43c9072914756011afb94df641d69",
|  "fused/fused_bias_act_cuda.cpp": "6b4838042c02812edcf1caa6df0e6c474ea07ad9f562699b1803031aad27927d",
|  "fused/fused_bias_act_kernel.cu": "4a949144be7fa7fc309eae8f352cf41cf6d8ee774ad6cc78d783d458f57162e8",
|  "fused/fused_bias_act_kernel.h": "ab18d5dee37bac0d6c8f4ec2ab9f54f3d367323ec2398676c9270d64bb518fa9"
| },
| "form": "load",
| "gpus": [
|  "7.5"
| ],
| "key": "KEY",
| "name": "fused",
| "patch": "",
| "path": "",
| "strip": false
|}
END

file 644 /kit/cuda.json <<'END'
|{
| "cuda": "11.2",
| "parts": [
|  {
|   "name": "nvidia-cuda-toolkit",
|   "file": "nvidia-cuda-toolkit_11.2.2-3+deb11u3_amd64.deb",
|   "take": [
|    {
|     "source": "usr/bin/*",
|     "target": "bin/",
|     "exclude": [
|      "usr/bin/nvcc",
|      "usr/bin/nvdisasm",
|      "usr/bin/compute-sanitizer",
|      "usr/bin/cuda-memcheck",
|      "usr/bin/TreeLauncher*"
|     ]
|    },
|    {
|     "source": "usr/lib/nvidia-cuda-toolkit/bin/nvcc",
|     "target": "bin/",
|     "exclude": []
|    },
|    {
|     "source": "usr/lib/nvidia-cuda-toolkit/bin/crt/**",
|     "target": "bin/crt/",
|     "exclude": []
|    },
|    {
|     "source": "usr/lib/nvidia-cuda-toolkit/bin/cicc",
|     "target": "nvvm/bin/",
|     "exclude": []
|    },
|    {
|     "source": "usr/lib/nvidia-cuda-toolkit/libdevice/**",
|     "target": "nvvm/libdevice/",
|     "exclude": []
|    },
|    {
|     "source": "usr/share/doc/nvidia-cuda-toolkit/copyright",
|     "target": "doc/nvidia-cuda-toolkit.copyright",
|     "exclude": []
|    }
|   ]
|  },
|  {
|   "name": "nvidia-cuda-dev",
|   "file": "nvidia-cuda-dev_11.2.2-3+deb11u3_amd64.deb",
|   "take": [
|    {
|     "source": "usr/include/**",
|     "target": "include/",
|     "exclude": [
|      "usr/include/cuda-gdb/**",
|      "usr/include/npp*",
|      "usr/include/nvjpeg.h"
|     ]
|    },
|    {
|     "source": "usr/lib/x86_64-linux-gnu/libcudadevrt.a",
|     "target": "lib64/",
|     "exclude": []
|    },
|    {
|     "source": "usr/lib/x86_64-linux-gnu/libcudart_static.a",
|     "target": "lib64/",
|     "exclude": []
|    },
|    {
|     "source": "usr/lib/x86_64-linux-gnu/stubs/libcuda.so",
|     "target": "lib64/stubs/",
|     "exclude": []
|    },
|    {
|     "source": "usr/share/doc/nvidia-cuda-dev/copyright",
|     "target": "doc/nvidia-cuda-dev.copyright",
|     "exclude": []
|    }
|   ]
|  },
|  {
|   "name": "libcub-dev",
|   "file": "libcub-dev_1.11.0-1_all.deb",
|   "take": [
|    {
|     "source": "usr/include/**",
|     "target": "include/",
|     "exclude": []
|    },
|    {
|     "source": "usr/share/doc/libcub-dev/copyright",
|     "target": "doc/libcub-dev.copyright",
|     "exclude": []
|    }
|   ]
|  },
|  {
|   "name": "libthrust-dev",
|   "file": "libthrust-dev_1.11.0-1_all.deb",
|   "take": [
|    {
|     "source": "usr/include/**",
|     "target": "include/",
|     "exclude": []
|    },
|    {
|     "source": "usr/share/doc/libthrust-dev/copyright",
|     "target": "doc/libthrust-dev.copyright",
|     "exclude": []
|    }
|   ]
|  }
| ],
| "header_wheels": [
|  "cudnn"
| ],
| "links": [
|  [
|   "lib",
|   "lib64"
|  ],
|  [
|   "targets/x86_64-linux/include",
|   "../../include"
|  ],
|  [
|   "targets/x86_64-linux/lib",
|   "../../lib64"
|  ],
|  [
|   "lib64/libcublas.so",
|   "{site}/nvidia/cublas/lib/libcublas.so.11"
|  ],
|  [
|   "lib64/libcublas.so.11",
|   "{site}/nvidia/cublas/lib/libcublas.so.11"
|  ],
|  [
|   "lib64/libcublasLt.so",
|   "{site}/nvidia/cublas/lib/libcublasLt.so.11"
|  ],
|  [
|   "lib64/libcublasLt.so.11",
|   "{site}/nvidia/cublas/lib/libcublasLt.so.11"
|  ],
|  [
|   "lib64/libcudart.so",
|   "{site}/nvidia/cuda_runtime/lib/libcudart.so.11.0"
|  ],
|  [
|   "lib64/libcudart.so.11.0",
|   "{site}/nvidia/cuda_runtime/lib/libcudart.so.11.0"
|  ],
|  [
|   "lib64/libcudnn.so",
|   "{site}/nvidia/cudnn/lib/libcudnn.so.8"
|  ],
|  [
|   "lib64/libcudnn.so.8",
|   "{site}/nvidia/cudnn/lib/libcudnn.so.8"
|  ],
|  [
|   "lib64/libnvrtc.so",
|   "{site}/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2"
|  ],
|  [
|   "lib64/libnvrtc.so.11.2",
|   "{site}/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2"
|  ]
| ],
| "files": [
|  [
|   "bin/nvcc.profile",
|   "TOP                = $(_HERE_)/..\nNVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice\nPATH              += $(TOP)/nvvm/bin:$(_HERE_):\nINCLUDES          += \"-I$(TOP)/include\" $(_SPACE_)\nLIBRARIES         =+ $(_SPACE_) \"-L$(TOP)/lib64/stubs\" \"-L$(TOP)/lib64\"\n"
|  ]
| ]
|}
END
SCRIPT

# The distribution's packages, unpacked.
FROM workshop AS debs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi
done
mkdir /debs
file 644 /debs/list <<'END'
|1478a610fd50e190882ff41e16c57b628a508bcf5b5ac5313affb49d20818e0a  pool/main/a/adduser/adduser_3.118+deb11u1_all.deb
|75f07c4965ff0813f26623a1164e162538f5e94defba6961347527ed71bc4f3d  pool/main/a/apt/apt_2.2.4_amd64.deb
|a7cc59f25ad7f3b87c000f33baf12678592be2c62776d03cf8f0f935f846acdc  pool/main/b/base-files/base-files_11.1+deb11u11_amd64.deb
|0c149206554a6f90db6b855eb0292b8e03acddd1ea2c16569cb3e3fbc98257ea  pool/main/b/base-passwd/base-passwd_3.5.51_amd64.deb
|f702ef058e762d7208a9c83f6f6bbf02645533bfd615c54e8cdcce842cd57377  pool/main/b/bash/bash_5.1-2+deb11u1_amd64.deb
|0b5c5b871029601a85131285d58e2f872e699d164ab157d9de8d2e081c234321  pool/main/b/binutils/binutils_2.35.2-2_amd64.deb
|47cd7cb9bf37f657993a6ef2f24d4943ded5ef616d866f2d43bdf5e5b3abb6ea  pool/main/b/binutils/binutils-common_2.35.2-2_amd64.deb
|b71ad0ec4328fd5da01fbd060714dafb1471d68dbfd2f897ad890b2ecf50b204  pool/main/b/binutils/binutils-x86-64-linux-gnu_2.35.2-2_amd64.deb
|bafbd08b1991c4d625a5d1dcf698e91011eca582aecd92d644d68dd4b0e6f28e  pool/main/u/util-linux/bsdutils_2.36.1-8+deb11u2_amd64.deb
|b2d488ad4d8d8adb3ba319fc9cb2cf9909fc42cb82ad239a26c570a2e749c389  pool/main/c/ca-certificates/ca-certificates_20210119_all.deb
|3558a412ab51eee4b60641327cb145bb91415f127769823b68f9335585b308d4  pool/main/c/coreutils/coreutils_8.32-4+b1_amd64.deb
|ff358a68bf34974c785ff61c07f55f3a23a0d400eafa0543cd8a2b763b251c38  pool/main/g/gcc-9/cpp-9_9.3.0-22_amd64.deb
|0a4cc532fbf2c78cb4090a659fb73560981e626849532e6186f3a3ac6a45b3bc  pool/main/d/dash/dash_0.5.11+git20200708+dd9ef66-5_amd64.deb
|d9ee4dff77aaad12674eed3ccefdcccd332424c9e2ac2ac00a37a1e06c84ab70  pool/main/d/debconf/debconf_1.5.77_all.deb
|28ca7749ab7978f3c571732c3aa1c56e3ad1d5db3c915293763d4f6cb8fcce89  pool/main/d/debian-archive-keyring/debian-archive-keyring_2021.1.1+deb11u1_all.deb
|83d21669c5957e3eaee20096a7d8c596bd07f57f1e95dc74f192b3fb7bb2e6a9  pool/main/d/debianutils/debianutils_4.11.2_amd64.deb
|3928c253d4086e2ea0621c5b384d6f9cff4a58fd2c2f27467badccba2cd9875a  pool/main/d/diffutils/diffutils_3.7-5_amd64.deb
|eb2b7ba3a3c4e905a380045a2d1cd219d2d45755aba5966d6c804b79400beb05  pool/main/d/dpkg/dpkg_1.20.13_amd64.deb
|1c706f32ca93e04c2e38b6292491f645eda1e0d06a155c5678e22ca96d7b0da6  pool/main/f/findutils/findutils_4.8.0-1_amd64.deb
|3ff29d39c6291c13569174cfc3a90c3f81c6df76169fae6244f30530a31a1843  pool/main/g/gcc-9/g++-9_9.3.0-22_amd64.deb
|be65535e94f95fbf04b104e8ab36790476f063374430f7dfc6c516cbe2d2cd1e  pool/main/g/gcc-10/gcc-10-base_10.2.1-6_amd64.deb
|499bfe9a9e1f4f266c27547adc445bf37717b731ed7e57921c138a0db15577ad  pool/main/g/gcc-9/gcc-9_9.3.0-22_amd64.deb
|5a5e0a896ead8fa3db122953061171d4e717349e8f3d50466729d9916fdc09a5  pool/main/g/gcc-9/gcc-9-base_9.3.0-22_amd64.deb
|52a3a5092d9723ff12dc9b3012b8b92dbbeb33d36286731a7ef0dd9e90e4fb9b  pool/main/g/gnupg2/gpgv_2.2.27-2+deb11u2_amd64.deb
|47d46c9cde2354724fb2d1e8fa1fa5204fdd751e87eadada7ff351b6355ace52  pool/main/g/grep/grep_3.6-1+deb11u1_amd64.deb
|34c4c773e2a7600ea3ed0bec0b6931ae5b7de5741bf260cacc55b1a2b92e008d  pool/main/g/gzip/gzip_1.10-4+deb11u1_amd64.deb
|3288cd76324fee7b1a34b97f6e6bcfc32a889f4f22002d0bd3788d8988eca791  pool/main/h/hostname/hostname_3.23_amd64.deb
|c3f04bde60ef4b0ce78c378985ab2ea03f1e6db3ae3aa78ecb07495c5e615ae6  pool/main/r/rdma-core/ibverbs-providers_33.2-1_amd64.deb
|43420922c5e3aa747f8854236bf381a35179bba3885b242edb104751dad20644  pool/main/i/init-system-helpers/init-system-helpers_1.60_all.deb
|aa18d721be8aea50fbdb32cd9a319cb18a3f111ea6ad17399aa4ba9324c8e26a  pool/main/a/acl/libacl1_2.2.53-10_amd64.deb
|4ae47bedf773ad1342e5aae8fa6275f864cfc87a45f4472775f5a9cdd60abbbf  pool/main/a/apt/libapt-pkg6.0_2.2.4_amd64.deb
|c793b8679ffa3f3d284392f641330ac64adb20837d2de6c0cc5766e39220f804  pool/main/g/gcc-9/libasan5_9.3.0-22_amd64.deb
|e8f1d04653698ab185c1144f35f905a1de87571c12ea630b65be669a2823d8c7  pool/main/g/gcc-10/libatomic1_10.2.1-6_amd64.deb
|af3c3562eb2802481a2b9558df1b389f3c6d9b1bf3b4219e000e05131372ebaf  pool/main/a/attr/libattr1_2.4.48-6_amd64.deb
|0d52f4826a57aea13cea1a85bfae354024c7b2f7b95e39cd1ce225e4db27d0f6  pool/main/a/audit/libaudit-common_3.0-2_all.deb
|e3aa1383e387dc077a1176f7f3cbfdbc084bcc270a8938f598d5cb119773b268  pool/main/a/audit/libaudit1_3.0-2_amd64.deb
|3f7c5bdaeab9446c8e3e282a61e160a78c426b69c5203f2d8a19037c5bf3b4eb  pool/main/b/binutils/libbinutils_2.35.2-2_amd64.deb
|be6ec9f14626174a34e27f8ca0c8be5531c07f22266fed4738c978af7f575ab2  pool/main/u/util-linux/libblkid1_2.36.1-8+deb11u2_amd64.deb
|16e27c3ebd97981e70db3733f899963362748f178a62644df69d1f247e741379  pool/main/b/bzip2/libbz2-1.0_1.0.8-4_amd64.deb
|f6335f60b75d564649ad2bb8f5f46900c3f3908ce6b7aff9f226620e96e0eba6  pool/main/g/glibc/libc-bin_2.31-13+deb11u11_amd64.deb
|289800bcbc9e3f2718c2e13e4f2c90f15843ffcf46b26d95a15b276fe2f9ac87  pool/main/g/glibc/libc-dev-bin_2.31-13+deb11u11_amd64.deb
|05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282  pool/main/g/glibc/libc6_2.31-13+deb11u11_amd64.deb
|e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3  pool/main/g/glibc/libc6-dev_2.31-13+deb11u11_amd64.deb
|d34e29769b8ef23e9b9920814afb7905b8ee749db0814e6a8d937ccc4f309830  pool/main/libc/libcap-ng/libcap-ng0_0.7.9-2.2+b1_amd64.deb
|762808789cccba7d6bc5baa369b0e230ca716c623d51a7ebde4ad06938ce81f6  pool/main/g/gcc-10/libcc1-0_10.2.1-6_amd64.deb
|d478f132871f4ab8352d39becf936d0ad74db905398bf98465d8fe3da6fb1126  pool/main/e/e2fsprogs/libcom-err2_1.46.2-2_amd64.deb
|8b04bf00b8c43360d9ba3adec209db290168ba3526d4aef3175fb84372b1bebf  pool/main/libx/libxcrypt/libcrypt-dev_4.4.18-4_amd64.deb
|f617952df0c57b4ee039448e3941bccd3f97bfff71e9b0f87ca6dae15cb3f5ef  pool/main/libx/libxcrypt/libcrypt1_4.4.18-4_amd64.deb
|74bbaddb02d19e6ccb331819087aa02e94ded72e93294c51e3ba3c29dbcd9a2b  pool/main/b/binutils/libctf-nobfd0_2.35.2-2_amd64.deb
|192c1631903259e6770b2f09dcab982f55497b770fe76d6c4febadfbb0be1318  pool/main/b/binutils/libctf0_2.35.2-2_amd64.deb
|00b9e63e287f45300d4a4f59b6b88e25918443c932ae3e5845d5761ae193c530  pool/main/d/db5.3/libdb5.3_5.3.28+dfsg1-0.8_amd64.deb
|ec17226299124a10fba4a3de666ca9050a4555a25fb30e9af9bcb234b6fbdfbe  pool/main/c/cdebconf/libdebconfclient0_0.260_amd64.deb
|5744040c4735bcdd51238aebfa3e402b857244897f1007f61154982ebe5abbd7  pool/main/e/expat/libexpat1_2.2.10-2+deb11u5_amd64.deb
|ec82eb630c2c357ba99cc4a1480ff382b46bc5f2e867e36d186314d1f2081255  pool/main/e/expat/libexpat1-dev_2.2.10-2+deb11u5_amd64.deb
|30ca89bfddae5fa6e0a2a044f22b6e50cd17c4bc6bc850c579819aeab7101f0f  pool/main/libf/libffi/libffi7_3.3-6_amd64.deb
|b81762ef510454aae9f7ce1a79bce0f40300262b142295632228c23588adf748  pool/main/g/gcc-9/libgcc-9-dev_9.3.0-22_amd64.deb
|e478f2709d8474165bb664de42e16950c391f30eaa55bc9b3573281d83a29daf  pool/main/g/gcc-10/libgcc-s1_10.2.1-6_amd64.deb
|7a2e0eef8e0c37f03f3a5fcf7102a2e3dc70ba987f696ab71949f9abf36f35ef  pool/main/libg/libgcrypt20/libgcrypt20_1.8.7-6_amd64.deb
|fc117ccb084a98d25021f7e01e4dfedd414fa2118fdd1e27d2d801d7248aebbc  pool/main/g/gmp/libgmp10_6.2.1+dfsg-1+deb11u1_amd64.deb
|cdfacece6f69c9eeecd509c7c44e1d5b47e09ad5e48f732ae151ded1afce45b4  pool/main/g/gnutls28/libgnutls30_3.7.1-5+deb11u5_amd64.deb
|4530c95aefa48e33fd8cf4acbe5c4b559dbe7bdf4c56469986c83a203982cef1  pool/main/g/gcc-10/libgomp1_10.2.1-6_amd64.deb
|16a507fb20cc58b5a524a0dc254a9cb1df02e1ce758a2d8abde0bc4a3c9b7c26  pool/main/libg/libgpg-error/libgpg-error0_1.38-2_amd64.deb
|f7edf1381e11c3ff63f2a6669101c09b2d0b0c56c782bd3b3b60bd02cacb0066  pool/main/k/krb5/libgssapi-krb5-2_1.18.3-6+deb11u5_amd64.deb
|6aab2e892cdb2dfba45707601bc6c3b19aa228f70ae5841017f14c3b0ca3d22f  pool/main/n/nettle/libhogweed6_3.7.3-1_amd64.deb
|47ae2856a6ef00897888e4853f405758309627930ec040482c4c97d9c77536ee  pool/main/r/rdma-core/libibverbs1_33.2-1_amd64.deb
|cb80cd769171537bafbb4a16c12ec427065795946b3415781bc9792e92d60b59  pool/main/libi/libidn2/libidn2-0_2.3.0-5_amd64.deb
|41eeaf9557571044f75b31730c05c22df3039d3152afd27b9fd33206f2fd5f7e  pool/main/i/isl/libisl23_0.23-1_amd64.deb
|fa1596ec64610463b0f805fe5aa7e2537682c1c77f1e08335456bfc36766c259  pool/main/g/gcc-10/libitm1_10.2.1-6_amd64.deb
|51b242c8423244fd661cdc91213aa870998e29d078930f303d5881537ae4f15e  pool/main/k/krb5/libk5crypto3_1.18.3-6+deb11u5_amd64.deb
|f01060b434d8cad3c58d5811d2082389f11b3db8152657d6c22c1d298953f2a5  pool/main/k/keyutils/libkeyutils1_1.6.1-2_amd64.deb
|198cd5a8616a98464283ab46fce7f86c5bb807a51257881cce81b05cc1f6d5fe  pool/main/k/krb5/libkrb5-3_1.18.3-6+deb11u5_amd64.deb
|5ef1bac55f8e8f0736ee554429c77c2cb7c0d03773d6b60a16b552c185aa490f  pool/main/k/krb5/libkrb5support0_1.18.3-6+deb11u5_amd64.deb
|6b5853688bb6d6bb9050d79ab732c751aa3ac7a5ed2404f7a6b53e7d4499bddc  pool/main/g/gcc-10/liblsan0_10.2.1-6_amd64.deb
|79ac6e9ca19c483f2e8effcc3401d723dd9dbb3a4ae324714de802adb21a8117  pool/main/l/lz4/liblz4-1_1.9.3-2_amd64.deb
|1c79a02415ca5ee7234ac60502fb33ee94fa70b02d1c329a6a14178f8329c435  pool/main/x/xz-utils/liblzma5_5.2.5-2.1~deb11u1_amd64.deb
|43e68214dd58fefe97ec14b131285aadca94167cd7b8f7d765c60f93909eda6e  pool/main/u/util-linux/libmount1_2.36.1-8+deb11u2_amd64.deb
|8ba77ec6878d3f5e9ebec240e9a2a867325ae47c0d728cfcc4c90830f903a3bc  pool/main/m/mpclib3/libmpc3_1.2.0-1_amd64.deb
|816404866f754d5662d69db50072018dccb78cf372fc38e0be961fab0f57d741  pool/main/m/mpdecimal/libmpdec3_2.5.1-1_amd64.deb
|5d26306d12a45a8a03dca473490d56a765b58d61b53146c1c7784903cf59c45d  pool/main/m/mpfr4/libmpfr6_4.1.0-3_amd64.deb
|70ed9c6f35a9de73a01b042d740d92c46bbc0392ca4e63ee984417bd8a4eca3a  pool/main/n/ncurses/libncursesw6_6.2+20201114-2+deb11u2_amd64.deb
|e4f8ec31ed14518b241eb7b423ad5ed3f4a4e8ac50aae72c9fd475c569582764  pool/main/n/nettle/libnettle8_3.7.3-1_amd64.deb
|851ddb0b2e15bb0be44d2d96ffda9c6b824b14b7302c1ee95ff0be72a5cee803  pool/main/libn/libnl3/libnl-3-200_3.4.0-1+b1_amd64.deb
|69d7b87e8acc048b4e17ae4c9ca38cf10e2e6f5659862f9664bf9af1a8cd396e  pool/main/libn/libnl3/libnl-route-3-200_3.4.0-1+b1_amd64.deb
|bb81a188c119cd7fdebae723cbc95887b6c549b2fe4fb7e268a9c8846444da99  pool/main/libn/libnsl/libnsl-dev_1.3.0-2_amd64.deb
|c0d83437fdb016cb289436f49f28a36be44b3e8f1f2498c7e3a095f709c0d6f8  pool/main/libn/libnsl/libnsl2_1.3.0-2_amd64.deb
|bfef5f31ee1c730e56e16bb62cc5ff8372185106c75bf1ed1756c96703019457  pool/main/p/p11-kit/libp11-kit0_0.23.22-1_amd64.deb
|ca1e121700bf4b3eb33e30e0774d3e63e1adae9d4b6a940ea3501225db3cc287  pool/main/p/pam/libpam-modules_1.4.0-9+deb11u1_amd64.deb
|abbbd181329c236676222d3e912df13f8d1d90a117559edd997d90006369e5c8  pool/main/p/pam/libpam-modules-bin_1.4.0-9+deb11u1_amd64.deb
|d98a68a56386d0992446417a4ee9fa685ebe841e81303a7d4f45cdd4c133c3f6  pool/main/p/pam/libpam-runtime_1.4.0-9+deb11u1_all.deb
|496771218fb585bb716fdae6ef8824dbfb5d544b4fa2f3cd4d0e4d7158ae2220  pool/main/p/pam/libpam0g_1.4.0-9+deb11u1_amd64.deb
|ee192c8d22624eb9d0a2ae95056bad7fb371e5abc17e23e16b1de3ddb17a1064  pool/main/p/pcre2/libpcre2-8-0_10.36-2+deb11u1_amd64.deb
|48efcf2348967c211cd9408539edf7ec3fa9d800b33041f6511ccaecc1ffa9d0  pool/main/p/pcre3/libpcre3_8.39-13_amd64.deb
|f903a5e24fd155cf09f25823a75c95a7de03a408ab699fe05c2c2930cbe018e3  pool/main/p/python3-defaults/libpython3-stdlib_3.9.2-3_amd64.deb
|97647869e7e9db643a7eeab949b7d140f9a175814fcc94289be70d426aa5fd1a  pool/main/p/python3.9/libpython3.9_3.9.2-1_amd64.deb
|3a2172f6d926cf2e98a1a2e24f5aecdc3bcd56fa7c6d9f7a3fc4892f67377d5f  pool/main/p/python3.9/libpython3.9-dev_3.9.2-1_amd64.deb
|594283526d67e03e3c4e96534f6bfe5da1bf41da5d49360553c9b79fbf08c4ab  pool/main/p/python3.9/libpython3.9-minimal_3.9.2-1_amd64.deb
|32ac64d959ac2dbc5bb289532fc9834dab8f671b5455695a3a9315aad973c65b  pool/main/p/python3.9/libpython3.9-stdlib_3.9.2-1_amd64.deb
|a9a5e1f53b7e27a3f2b8388929bb622d3c6c35a4e42ac166697444e5ed662fd5  pool/main/g/gcc-10/libquadmath0_10.2.1-6_amd64.deb
|162ba9fdcde81b5502953ed4d84b24e8ad4e380bbd02990ab1a0e3edffca3c22  pool/main/r/readline/libreadline8_8.1-1_amd64.deb
|2617fc8b99dca0fa8ed466ee0f5fe087aa4e8413b88ca45d717290f4a0551e36  pool/main/libs/libseccomp/libseccomp2_2.5.1-1+deb11u1_amd64.deb
|339f5ede10500c16dd7192d73169c31c4b27ab12130347275f23044ec8c7d897  pool/main/libs/libselinux/libselinux1_3.1-3_amd64.deb
|d319a026ecd02e2f605c52350949279f3c331a19380f8b6888ce5b9ef0d31349  pool/main/libs/libsemanage/libsemanage-common_3.1-1_all.deb
|d8f2835b22df58ba45d52eb3aab224190f193576caf05e3f80deb2e4f927fad6  pool/main/libs/libsemanage/libsemanage1_3.1-1+b2_amd64.deb
|b6057dc6806a6dfaef74b09d84d1f18716d7a6d2f1da30520cef555210c6af62  pool/main/libs/libsepol/libsepol1_3.1-1_amd64.deb
|0f77983b795f3ef9ed664dab8e8e20ffb477fa87cecca7a74bd5a0c050516345  pool/main/u/util-linux/libsmartcols1_2.36.1-8+deb11u2_amd64.deb
|a0b8d3acf4a0483048637637d269be93af48d5c16f6f139f53edd13384ad4686  pool/main/s/sqlite3/libsqlite3-0_3.34.1-3_amd64.deb
|aadf8b4b197335645b230c2839b4517aa444fd2e8f434e5438c48a18857988f7  pool/main/o/openssl/libssl1.1_1.1.1w-0+deb11u1_amd64.deb
|9093e4d3dfe394b078b39bf2598102830ad4466495612174af7702704a322977  pool/main/g/gcc-9/libstdc++-9-dev_9.3.0-22_amd64.deb
|5c155c58935870bf3b4bfe769116841c0d286a74f59eccfd5645693ac23f06b1  pool/main/g/gcc-10/libstdc++6_10.2.1-6_amd64.deb
|b6f43b910f2dff96b50626357712881895891f9559c7fdd62c4b649e400f733d  pool/main/s/systemd/libsystemd0_247.3-7+deb11u5_amd64.deb
|6ebb579337cdc9d6201237a66578425a7a221db622524354e27c0c1bcb6dd7ca  pool/main/libt/libtasn1-6/libtasn1-6_4.16.0-2+deb11u1_amd64.deb
|96ed58b8fd656521e08549c763cd18da6cff1b7801a3a22f29678701a95d7e7b  pool/main/n/ncurses/libtinfo6_6.2+20201114-2+deb11u2_amd64.deb
|b2f10cb79e7d7a2f9b30bcdf036127df55cd4a34688547bc2886fa38f4969f77  pool/main/libt/libtirpc/libtirpc-common_1.3.1-1+deb11u1_all.deb
|6983131dbb8568e55d80ba68fe2dbf60ed60c5e7cf99421374d7055932eba411  pool/main/libt/libtirpc/libtirpc-dev_1.3.1-1+deb11u1_amd64.deb
|86b216d59b6efcd07d56d14b8f4281d5c47f24e9c962f46bbaf02fce762c5e6a  pool/main/libt/libtirpc/libtirpc3_1.3.1-1+deb11u1_amd64.deb
|4ea9ce5df578309538e684fcbca0c4403c6d7ca01b3f44868829e98a55548e2a  pool/main/g/gcc-10/libtsan0_10.2.1-6_amd64.deb
|9435da9b51aba0f9b128ccf3e80cc1e8233aa6b816d7bddd5688ca6c4afb6e4d  pool/main/g/gcc-10/libubsan1_10.2.1-6_amd64.deb
|1db2b4498ae8fc80aaf06e3cf3adc479ae415d0ece1b475e86544de165931865  pool/main/s/systemd/libudev1_247.3-7+deb11u5_amd64.deb
|654433ad02d3a8b05c1683c6c29a224500bf343039c34dcec4e5e9515345e3d4  pool/main/libu/libunistring/libunistring2_0.9.10-4_amd64.deb
|60d982ddfbc6f3cba122b26a887bec00722247e6c657968704daf93d93f5afe3  pool/main/u/util-linux/libuuid1_2.36.1-8+deb11u2_amd64.deb
|3fb82550a71d27d05672472508548576dfb34486847bc860d3066cda5aaf186f  pool/main/x/xxhash/libxxhash0_0.8.0-2_amd64.deb
|5dcadfbb743bfa1c1c773bff91c018f835e8e8c821d423d3836f3ab84773507b  pool/main/libz/libzstd/libzstd1_1.4.8+dfsg-2.1_amd64.deb
|e3be603bd12377bb90fcfb0f2048ca3a81c886e49d6f09945b82159d1c54f7b2  pool/main/l/linux/linux-libc-dev_5.10.223-1_amd64.deb
|6ff19f91aa6bdd410cc1e1655d7d360ab97593c034bccfe46402e01d6ae2fb08  pool/main/s/shadow/login_4.8.1-1_amd64.deb
|89ed6332074d827a65305f9a51e591dff20641d61ff5e11f4e1822a9987e96fe  pool/main/l/lsb/lsb-base_11.1.0_all.deb
|a1a83af8cbd854af887b72ad196b1f4af58387815e21ced1000253a116a46e2a  pool/main/m/make-dfsg/make_4.3-4.1_amd64.deb
|0bc92b1b1851fbdf3343c527fefca7296a7b82ea36b8597924991140b541fc34  pool/main/m/mawk/mawk_1.3.4.20200120-2_amd64.deb
|f9835dcf3cdbaf163104d4e511c9c4e0f41a56822e147e57f28f749fcbf7d44c  pool/main/m/media-types/media-types_4.0.0_all.deb
|a55a5f94299448279da6a6c2031a9816dc768cd300668ff82ecfc6480bbfc83d  pool/main/n/ncurses/ncurses-base_6.2+20201114-2+deb11u2_all.deb
|051a9ad8f5e9c89b189112114e39a46d3c68855529c826a7879dfd471377fd14  pool/main/n/ncurses/ncurses-bin_6.2+20201114-2+deb11u2_amd64.deb
|54e7ab6ca81951f3de4e3d41666409647ad619319dd43f6cc66c1694c849eca3  pool/main/n/ninja-build/ninja-build_1.10.1-1_amd64.deb
|04873d74cbe86bad3a9901f6e57f1150040eba9891b443c5c975a72a97238e35  pool/main/o/openssl/openssl_1.1.1w-0+deb11u1_amd64.deb
|542593f26502e87b4276fa778e6e3ae52e66b973979986fff77803d9fcb2c2e8  pool/main/s/shadow/passwd_4.8.1-1_amd64.deb
|94c6299552866aadc58acb8ec5111a74b17bcb453f6e2f45ea5f7c4f42580d13  pool/main/p/perl/perl-base_5.32.1-4+deb11u3_amd64.deb
|6d9375916c5c0d670df708bed3e8c033ce4b197a580d536ce39d1170c67a4c95  pool/main/p/python3-defaults/python3_3.9.2-3_amd64.deb
|05ec4080e0f05ba6b1c339d89c97f6343919be450b66cf4cfb215f54dcb85e58  pool/main/p/python3-stdlib-extensions/python3-distutils_3.9.2-1_all.deb
|802c198e5dd0b5af85a6937e426a85d616680785e8d18148fac451281a83a9a9  pool/main/p/python3-stdlib-extensions/python3-lib2to3_3.9.2-1_all.deb
|159320ef8a2d740dcc2245c7f0ac0e678b2796354044c90760fe2a4c6ef117b4  pool/main/p/python3-defaults/python3-minimal_3.9.2-3_amd64.deb
|12f8b47632cc26b986bfc4c882fc98e7036d406143ae8bb1dbfff6b61d7c8993  pool/main/p/python3.9/python3.9_3.9.2-1_amd64.deb
|7e93f240abe1c78c10d69ccec41ec5769763d99cebfd4e91407348520b18d908  pool/main/p/python3.9/python3.9-dev_3.9.2-1_amd64.deb
|5d6003c5c20223a2547ac4976e09a9ec778dbe351507a6292bef3b60df5f4aa7  pool/main/p/python3.9/python3.9-minimal_3.9.2-1_amd64.deb
|3f947176ef949f93e4ad5d76c067d33fa97cf90b62ee0748acb4f5f64790edc8  pool/main/r/readline/readline-common_8.1-1_all.deb
|37917c63d062cd924ba5084820353b256377d88371fbb89537ff06f7a0b5a6c7  pool/main/s/sed/sed_4.7-1_amd64.deb
|1e4a937784484b996dc016d484637eba8cfdb1a40950dfa6bf2e922a268bfbd5  pool/main/s/sysvinit/sysvinit-utils_2.96-7+deb11u1_amd64.deb
|41c9c31f67a76b3532036f09ceac1f40a9224f1680395d120a8b24eae60dd54a  pool/main/t/tar/tar_1.34+dfsg-1+deb11u1_amd64.deb
|13befffb7ee127f569af92d736e30c86c199bbd58f9c3cca0d071ed63e04d003  pool/main/t/tzdata/tzdata_2024a-0+deb11u1_all.deb
|bacfee8e7266143b633eb281a726a861686e6bdf6b76104803d6dfbbf21107f8  pool/main/u/util-linux/util-linux_2.36.1-8+deb11u2_amd64.deb
|03d2ab2174af76df6f517b854b77460fbdafc3dac0dca979317da67538159a3e  pool/main/z/zlib/zlib1g_1.2.11.dfsg-2+deb11u2_amd64.deb
|f49fc849870c4e64fed2794722841ee950c1788f7fe90b3a091e6a098a46cd33  pool/main/z/zlib/zlib1g-dev_1.2.11.dfsg-2+deb11u2_amd64.deb
END
# shellcheck disable=SC2016  # it is apt that knows what this stands for
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed -n 1p)}
while read -r sha256 path; do
  file=/debs/${path##*/}
  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
  else curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"; fi
  echo "$sha256  $file" | sha256sum --check --quiet
done </debs/list
rm /debs/list
SCRIPT

RUN --network=none <<'SCRIPT'
#!/bin/bash
set -euo pipefail
mkdir /root/target /root/target/usr && cd /root/target
for name in bin sbin lib lib32 lib64 libx32; do mkdir usr/$name; ln -s usr/$name $name; done
for deb in /debs/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink; done
for name in hostname hosts machine-id resolv.conf; do : >etc/$name; done  # a runtime's, and empty in an image
SCRIPT

# The CUDA toolkit's packages.
FROM workshop AS parts
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi
done
mkdir /parts
file 644 /parts/list <<'END'
|b02f0a2ccb072c1095356bbbc68d77cf2577f54011321081e844eb8f08959225  pool/main/c/cub/libcub-dev_1.11.0-1_all.deb
|b7c6031cab5138fe0881438f02f6811c18e8f977e1b61363ce0cb2c91a6ca0aa  pool/main/libt/libthrust/libthrust-dev_1.11.0-1_all.deb
|412b4900e53de43f020a8d0d362f68576f8ac5433d132a3de9d2d303d67f3a96  pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-dev_11.2.2-3+deb11u3_amd64.deb
|d6dda1647ca72d6c5f601b21355c631aba9849ae99cc3cfa14a7e6796eae4cb8  pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_11.2.2-3+deb11u3_amd64.deb
END
# shellcheck disable=SC2016  # it is apt that knows what this stands for
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed -n 1p)}
while read -r sha256 path; do
  file=/parts/${path##*/}
  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
  else curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"; fi
  echo "$sha256  $file" | sha256sum --check --quiet
done </parts/list
rm /parts/list
SCRIPT

# The distribution: a root of exactly those packages, installed by their own dpkg.
FROM scratch AS os
ARG SOURCE_DATE_EPOCH
COPY --from=debs /root/target /
RUN --network=none --mount=type=bind,from=kit,source=/kit,target=/kit --mount=type=bind,from=debs,source=/debs,target=/debs <<'SCRIPT'
#!/bin/bash
set -euo pipefail
export EXCLUDE='/usr/share/man/* /usr/share/info/* /usr/share/doc/* /usr/share/locale/*' KEEP='/usr/share/doc/*/copyright'
export DROP='var/cache/apt var/cache/debconf var/cache/ldconfig/aux-cache var/lib/apt var/log var/lib/dpkg/status-old etc/apt/sources.list var/lib/dbus/machine-id etc/ssh/ssh_host_ecdsa_key etc/ssh/ssh_host_ecdsa_key.pub etc/ssh/ssh_host_ed25519_key etc/ssh/ssh_host_ed25519_key.pub etc/ssh/ssh_host_rsa_key etc/ssh/ssh_host_rsa_key.pub'
export NAMES='gcc=gcc cc=gcc x86_64-linux-gnu-gcc=gcc g++=g++ c++=g++ x86_64-linux-gnu-g++=g++ cpp=cpp gcc-ar=gcc-ar gcc-nm=gcc-nm gcc-ranlib=gcc-ranlib gcov=gcov'
sh /kit/configure_os.sh /debs 9 3.9
set -- ''
echo "vscode:*:65000:65000::/home/vscode:/bin/bash" >>"$1/etc/passwd" && echo "vscode:*:65000:" >>"$1/etc/group" && install -d -o 65000 -g 65000 -m 755 "$1/home/vscode"
SCRIPT

# The Python environment.
FROM os AS python
ARG SOURCE_DATE_EPOCH
ARG PYTORCH_INDEX
ARG INDEX
RUN --mount=type=bind,from=kit,source=/kit,target=/kit --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi
done
mkdir -p /opt/env/bin /opt/env/lib/python3.9/site-packages && cd /opt/env
ln -s lib lib64 && ln -s /usr/bin/python3.9 bin/python
ln -s python bin/python3 && ln -s python bin/python3.9
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.9\n' >pyvenv.cfg
export UV_NO_INSTALLER_METADATA=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR=/tmp/uv
export PYTHONHASHSEED=0 PYTHONWARNINGS=ignore PYC_INVALIDATION_MODE=UNCHECKED_HASH
if [ -n "${INDEX-}" ]; then export UV_DEFAULT_INDEX="$INDEX"; fi
file 644 /tmp/requirements.txt <<'END'
|# numpy-1.26.4-cp39-cp39-manylinux_2_17_x86_64.manylinux2014_x86_64.whl
|numpy==1.26.4 --hash=sha256:f870204a840a60da0b12273ef34f7051e98c3b5961b61b0c2c1be6dfd64fbcd3
|# nvidia_cublas_cu11-11.10.3.66-py3-none-manylinux1_x86_64.whl
|nvidia-cublas-cu11==11.10.3.66 --hash=sha256:d32e4d75f94ddfb93ea0a5dda08389bcc65d8916a25cb9f37ac89edaeed3bded
|# nvidia_cuda_nvrtc_cu11-11.7.99-2-py3-none-manylinux1_x86_64.whl
|nvidia-cuda-nvrtc-cu11==11.7.99 --hash=sha256:9f1562822ea264b7e34ed5930567e89242d266448e936b85bc97a3370feabb03
|# nvidia_cuda_runtime_cu11-11.7.99-py3-none-manylinux1_x86_64.whl
|nvidia-cuda-runtime-cu11==11.7.99 --hash=sha256:cc768314ae58d2641f07eac350f40f99dcb35719c4faff4bc458a7cd2b119e31
|# nvidia_cudnn_cu11-8.5.0.96-2-py3-none-manylinux1_x86_64.whl
|nvidia-cudnn-cu11==8.5.0.96 --hash=sha256:402f40adfc6f418f9dae9ab402e773cfed9beae52333f6d86ae3107a1b9527e7
|# nvidia_ml_py-13.615.71-py3-none-any.whl
|nvidia-ml-py==13.615.71 --hash=sha256:959bf4adf6fe1308e4bd739e722236b0d1ec8392e2cefad33ff70c311380b9b6
|# packaging-26.3-py3-none-any.whl
|packaging==26.3 --hash=sha256:d7193f7c8e4e93f444fde0262bf90af30e16fa0ad0ad44cb553c87339b23cd1c
|# setuptools-69.5.1-py3-none-any.whl
|setuptools==69.5.1 --hash=sha256:c636ac361bc47580504644275c9ad802c50415c7522212252c033bd15f301f32
|# torch-1.13.1-cp39-cp39-manylinux1_x86_64.whl
|torch==1.13.1 --hash=sha256:50ff5e76d70074f6653d191fe4f6a42fdbe0cf942fbe2a3af0b75eaa414ac038
|# typing_extensions-4.16.0-py3-none-any.whl
|typing-extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8
|# wheel-0.48.0-py3-none-any.whl
|wheel==0.48.0 --hash=sha256:3217dcc807155e45db462d7ef2431f5ddda0d7273b700d05a67b271ceb1287ab
END
offline=--no-index
while read -r sign name; do [ "$sign" != '#' ] || [ -e "/artifacts/$name" ] || offline=; done </tmp/requirements.txt
/kit/uv pip install --no-config --no-deps --require-hashes --requirement /tmp/requirements.txt --python /opt/env/bin/python --link-mode copy --find-links /artifacts $offline
/usr/bin/python3.9 /kit/compile_all.py /opt/env/lib/python3.9/site-packages
/usr/bin/python3.9 /kit/check_byte_code.py /opt/env/lib/python3.9/site-packages
rm -rf /tmp/uv /tmp/requirements.txt && chmod 644 /opt/env/.lock
SCRIPT

# The CUDA toolkit; what the wheels have is linked.
FROM python AS cuda
RUN --network=none --mount=type=bind,from=kit,source=/kit,target=/kit --mount=type=bind,from=parts,source=/parts,target=/parts <<'SCRIPT'
#!/bin/bash
set -euo pipefail
/usr/bin/python3.9 /kit/install_toolkit.py /kit/cuda.json /parts /opt/env/lib/python3.9/site-packages
SCRIPT

# The extensions, from the recipe's own sources; no GPU is needed.
FROM cuda AS extensions
ARG SOURCE_DATE_EPOCH
RUN --network=none --mount=type=bind,from=kit,source=/kit,target=/kit --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
mkdir -p /tmp/inputs /tmp/parts && ln -s /context /tmp/inputs/files
mkdir /tmp/parts/extension-0
env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /opt/env/bin/python -B /kit/extension.py /kit/extension-0/spec.json /tmp/inputs /tmp/parts/extension-0
env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.9 /kit/extensions.py /kit/extensions/spec.json /tmp/parts /root/out
rm -rf /tmp/inputs /tmp/parts /tmp/extension /space
SCRIPT

# What runs first in each Python, and what a runtime reads.
FROM os AS start
RUN --network=none <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}

file 644 /opt/env/lib/python3.9/site-packages/first.pth <<'END'
|import first
END

file 644 /opt/env/lib/python3.9/site-packages/first.py <<'END'
END

file 755 /root/out/.singularity.d/env/10-docker2singularity.sh <<'END'
|#!/bin/sh
|export PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
|export PYTORCH_VERSION=1.13.1
|export CUDA_HOME=/usr/local/cuda
END

file 755 /root/out/.singularity.d/env/90-environment.sh <<'END'
|#!/bin/sh
|# Values that a user may change do not belong here: they would beat the user's own.
END

file 755 /root/out/.singularity.d/env/99-base.sh <<'END'
|#!/bin/sh
|# The driver's libraries of `--nv`. Apptainer sets what `--env` and APPTAINERENV_X say right after this file.
|export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
END

file 755 /root/out/.singularity.d/runscript <<'END'
|#!/bin/sh
|if [ "$#" -eq 0 ]; then set -- /bin/bash; fi
|exec /opt/envbuilder/start "$@"
END

file 644 /root/out/.singularity.d/labels.json <<'END'
|{
| "a.label": "its value"
|}
END

file 755 /root/out/.singularity.d/startscript <<'END'
|#!/bin/sh
END

file 644 /root/out/etc/profile.d/envbuilder.sh <<'END'
|# Login shells read this file: /etc/profile sets another PATH, and `su -` and sshd drop the rest.
|case :$PATH: in *:/opt/env/bin:*) ;; *) export PATH=/opt/env/bin:/usr/local/cuda/bin:"$PATH" ;; esac
|[ -n "${PYTORCH_VERSION+set}" ] || export PYTORCH_VERSION=1.13.1
|[ -n "${CUDA_HOME+set}" ] || export CUDA_HOME=/usr/local/cuda
END

file 755 /root/out/opt/envbuilder/start <<'END'
|#!/bin/sh
|exec "$@"
END

mkdir -p /root/out/.singularity.d/libs
ln -s .singularity.d/runscript /root/out/singularity
ln -s .singularity.d/env/90-environment.sh /root/out/environment

PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.9 -m compileall -q --invalidation-mode unchecked-hash \
  /opt/env/lib/python3.9/site-packages/first.py
SCRIPT

# The image.
FROM scratch
COPY --from=os / /
COPY --link --from=python /opt/env /opt/env
COPY --link --from=cuda /usr/local/ /usr/local/
COPY --link --from=extensions /root/out /
COPY --link --from=start /opt/env /opt/env
COPY --link --from=start /opt/envbuilder /opt/envbuilder
COPY --link --from=start /root/out /
ENV PATH="/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV PYTORCH_VERSION="1.13.1"
ENV CUDA_HOME="/usr/local/cuda"
ENV NVIDIA_VISIBLE_DEVICES="all"
ENV NVIDIA_DRIVER_CAPABILITIES="compute,utility"
LABEL a.label="its value"
LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\",\"nvidia.nsight-vscode-edition\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.9/site-packages/torch/include\",\"/opt/env/lib/python3.9/site-packages/torch/include/torch/csrc/api/include\",\"/usr/local/cuda/include\",\"/usr/include/python3.9\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
ENTRYPOINT ["/opt/envbuilder/start"]
CMD ["/bin/bash"]
