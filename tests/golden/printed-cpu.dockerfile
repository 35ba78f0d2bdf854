# The environment `cpu` without envbuilder: PyTorch 2.13 for machines without a GPU
#
#   docker buildx build --file THIS_FILE --tag cpu --build-arg SOURCE_DATE_EPOCH=1795219200 FOLDER_OF_THE_RECIPE
#
# Every file is fetched by its sha256. Where the network is behind a proxy that looks into TLS, add
# `--secret id=ca,src=FILE_OF_CERTIFICATES`. What lies in a folder already is taken from there with
# `--build-context artifacts=FOLDER`. The same time for each file: `--output type=oci,dest=FILE,rewrite-timestamp=true`.
#
# hadolint global ignore=DL3002,DL3003,DL3006,DL3008,DL3009,DL3067,DL4006,SC3040
# Why those: each fetch is one script of bash that sets pipefail itself and goes where it works; the workshop's own packages
# come into no image, so none is pinned or tidied away; programs run as root of the root that they make.

# The workshop: any image with apt and dpkg. Nothing of it comes into the image.
ARG BASE=debian:bookworm
# PyTorch's own indexes, for builds that the package index does not have.
ARG PYTORCH_INDEX="https://index.example/pytorch"
# Addresses of mirrors and of a package index; empty: those that the workshop's apt and pip know by themselves.
ARG DEBIAN_MIRROR=
ARG DEBIAN_SECURITY=
ARG UBUNTU_MIRROR=
ARG CUDA_REDIST=
ARG PYTHON_MIRROR=
ARG INDEX=

# Files that need not be fetched: `--build-context artifacts=FOLDER` takes the place of this empty stage.
FROM scratch AS artifacts

# The workshop's tools, and the programs that the stages below run.
FROM ${BASE} AS workshop
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
export DEBIAN_FRONTEND=noninteractive
if ! { command -v curl >/dev/null && python3 -m pip --version >/dev/null 2>&1; }; then
  apt-get update && apt-get install --yes --no-install-recommends ca-certificates curl python3-pip
fi
offline=
for file in /artifacts/uv-*.whl; do [ ! -e "$file" ] || offline=--no-index; done
mkdir /steps
PIP_ROOT_USER_ACTION=ignore python3 -m pip download --quiet --disable-pip-version-check --no-deps --find-links /artifacts $offline --dest /uv uv==1.2.3
python3 -m zipfile --extract /uv/uv-*.whl /uv
mv /uv/uv-*.data/scripts/uv /steps/uv && chmod 755 /steps/uv && rm -r /uv

file 644 /steps/byte_code.py <<'END'
|the program byte_code.py
END

file 644 /steps/capture_calls.py <<'END'
|the program capture_calls.py
END

file 644 /steps/compile_call.py <<'END'
|the program compile_call.py
END

file 644 /steps/configure_distribution.sh <<'END'
|the program configure_distribution.sh
END

file 644 /steps/distribution.py <<'END'
|the program distribution.py
END

file 644 /steps/extension.py <<'END'
|the program extension.py
END

file 644 /steps/extensions.py <<'END'
|the program extensions.py
END

file 644 /steps/git.sh <<'END'
|the program git.sh
END

file 644 /steps/gpu_code.py <<'END'
|the program gpu_code.py
END

file 644 /steps/no_comment.ld <<'END'
|the program no_comment.ld
END

file 644 /steps/sitecustomize.py <<'END'
|the program sitecustomize.py
END

file 644 /steps/steady.c <<'END'
|the program steady.c
END

file 644 /steps/wheels.py <<'END'
|the program wheels.py
END

file 644 /steps/write_files.py <<'END'
|the program write_files.py
END

file 644 /steps/fetch_package.py <<'END'
|the program fetch_package.py
END
SCRIPT

# What `unpack` is made of.
FROM workshop AS unpack-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs /step/inputs/debs
file 644 /step/spec.json <<'END'
|{
| "architecture": "amd64",
| "gcc": "12",
| "tools": "",
| "triplet": "x86_64-linux-gnu"
|}
END
# shellcheck disable=SC2016  # it is apt that knows what this stands for
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed -n 1p)}
file 644 /steps/list <<'END'
|c24fe4eb8e60d8632d72ed104cce7c92cff200847c897dc8ba764b6c47b519e0  /step/inputs/debs/adduser_3.134.deb	pool/main/a/adduser/adduser_3.134_all.deb
|6ea03cbbc7a7bfcee601c9fb08d4e026fd522ede5350561f06867ad9c0a0fa6b  /step/inputs/debs/apt_2.6.1.deb	pool/main/a/apt/apt_2.6.1_amd64.deb
|3eb1ea6d85488f488cc2a163b98ad640ef88cee4c79287cf14e361aaf6206f47  /step/inputs/debs/base-files_12.4+deb12u15.deb	pool/main/b/base-files/base-files_12.4+deb12u15_amd64.deb
|908ca1b35125f49125ae56945a72bc11ce0fcec85a8d980d10d83bb3a610f518  /step/inputs/debs/base-passwd_3.6.1.deb	pool/main/b/base-passwd/base-passwd_3.6.1_amd64.deb
|82130bb6a560cd2a7234d8018baf73f188f5dd56413d5aa0accc987b2197a6a1  /step/inputs/debs/bash_5.2.15-2+b13.deb	pool/main/b/bash/bash_5.2.15-2+b13_amd64.deb
|83c3e20b53e1fbd84d764c3ba27d26a0376e361ae5d7fb37120196934dd87424  /step/inputs/debs/binutils_2.40-2.deb	pool/main/b/binutils/binutils_2.40-2_amd64.deb
|ab314134f43a0891a48f69a9bc33d825da748fa5e0ba2bebb7a5c491b026f1a0  /step/inputs/debs/binutils-common_2.40-2.deb	pool/main/b/binutils/binutils-common_2.40-2_amd64.deb
|2d7ea8a570d768224d7f2424abbe6f373d2154865a1fa7f56c80d43ecf492521  /step/inputs/debs/binutils-x86-64-linux-gnu_2.40-2.deb	pool/main/b/binutils/binutils-x86-64-linux-gnu_2.40-2_amd64.deb
|6cae172b006a4603e710e046c3acba8d98d36748894cbe3eeda31d415fec331e  /step/inputs/debs/bsdutils_1%3a2.38.1-5+deb12u3.deb	pool/main/u/util-linux/bsdutils_2.38.1-5+deb12u3_amd64.deb
|0d5f444f594e48c1e16a41d8fc628a09b24c658916a1274025c2330f2a802bed  /step/inputs/debs/ca-certificates_20230311+deb12u1.deb	pool/main/c/ca-certificates/ca-certificates_20230311+deb12u1_all.deb
|61038f857e346e8500adf53a2a0a20859f4d3a3b51570cc876b153a2d51a3091  /step/inputs/debs/coreutils_9.1-1.deb	pool/main/c/coreutils/coreutils_9.1-1_amd64.deb
|fedbb98e877adde83c983c6071537ea25ac52b277ac6e4637d85025949ca1454  /step/inputs/debs/cpp-12_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/cpp-12_12.2.0-14+deb12u1_amd64.deb
|33ea40061da2f1a861ec46212b2b6a34f0776a049b1a3f0abce2fb8cb994258f  /step/inputs/debs/dash_0.5.12-2.deb	pool/main/d/dash/dash_0.5.12-2_amd64.deb
|74ab14194a3762b2fc717917dcfda42929ab98e3c59295a063344dc551cd7cc8  /step/inputs/debs/debconf_1.5.82.deb	pool/main/d/debconf/debconf_1.5.82_all.deb
|f699e2f88dca05212f2a452b58475f2993cb6993dfbafb1d0205a3291eb8b4b8  /step/inputs/debs/debian-archive-keyring_2023.3+deb12u2.deb	pool/main/d/debian-archive-keyring/debian-archive-keyring_2023.3+deb12u2_all.deb
|55f951359670eb3236c9e2ccd5fac9ccb3db734f5a22aff21589e7a30aee48c9  /step/inputs/debs/debianutils_5.7-0.5~deb12u1.deb	pool/main/d/debianutils/debianutils_5.7-0.5~deb12u1_amd64.deb
|8bdfedc14c1035e3750e9f055ac9c1ecd9b5d05d9e6dc6466c4e9237eef407dd  /step/inputs/debs/diffutils_1%3a3.8-4.deb	pool/main/d/diffutils/diffutils_3.8-4_amd64.deb
|f89e9f8d1a4a50ade44be3ed59a6ec55460fce205d2f8520c5c492137c5b609b  /step/inputs/debs/dpkg_1.21.23.deb	pool/main/d/dpkg/dpkg_1.21.23_amd64.deb
|5dd86bd0af4aa73f067dfd6b8339dd868f2dd84056aa79db29d1206d4fbc5e04  /step/inputs/debs/findutils_4.9.0-4.deb	pool/main/f/findutils/findutils_4.9.0-4_amd64.deb
|68b182badae4ace7d472f1393c559d3532a95a2d70817498b10bb481d2627251  /step/inputs/debs/g++-12_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/g++-12_12.2.0-14+deb12u1_amd64.deb
|b46f33cc2ec245e435e043807038cecf4b201ef004800e9dfc1455240360e49d  /step/inputs/debs/gcc-12_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/gcc-12_12.2.0-14+deb12u1_amd64.deb
|1896a2aacf4ad681ff5eacc24a5b0ca4d5d9c9b9c9e4b6de5197bc1e116ea619  /step/inputs/debs/gcc-12-base_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/gcc-12-base_12.2.0-14+deb12u1_amd64.deb
|2966dc0a0b89caa65c3b4a386fa4ed0b6ca2239cd51ec40e6920507aedcdb14a  /step/inputs/debs/gpgv_2.2.40-1.1+deb12u2.deb	pool/main/g/gnupg2/gpgv_2.2.40-1.1+deb12u2_amd64.deb
|3264acea728df3c48a54f20e9291b965130e306b9d00adac76647049da7196df  /step/inputs/debs/grep_3.8-5.deb	pool/main/g/grep/grep_3.8-5_amd64.deb
|eabec1dde2834f72540d7b93fc5df2625f52611c06d93d61f5cdb12480e0e6a3  /step/inputs/debs/gzip_1.12-1.deb	pool/main/g/gzip/gzip_1.12-1_amd64.deb
|17d9a2f3c05004499d80e180d2440fd716f84c32b65f09d96c9a024af4d1d0e7  /step/inputs/debs/hostname_3.23+nmu1.deb	pool/main/h/hostname/hostname_3.23+nmu1_amd64.deb
|afab482524c64e4e256eb5cab43c1a96dc493ec476d94f19f1a5ec3de5fa0fef  /step/inputs/debs/init-system-helpers_1.65.2+deb12u1.deb	pool/main/i/init-system-helpers/init-system-helpers_1.65.2+deb12u1_all.deb
|8be9df5795114bfe90e2be3d208ef47a5edd3fc7b3e20d387a597486d444e5e2  /step/inputs/debs/libacl1_2.3.1-3.deb	pool/main/a/acl/libacl1_2.3.1-3_amd64.deb
|ccab743f6784b4cc7bd69e1810630edaf726cd69c1e735e39a16266d470bfdc0  /step/inputs/debs/libapt-pkg6.0_2.6.1.deb	pool/main/a/apt/libapt-pkg6.0_2.6.1_amd64.deb
|e7ac5d797d7d438a130674a8e463530f06aa02ecf919ca054d75eaa2f7849ec7  /step/inputs/debs/libasan8_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libasan8_12.2.0-14+deb12u1_amd64.deb
|fbd4e154a6b444229ea002cc209df099209c0adc09102e5fd21239a3d2b55e2d  /step/inputs/debs/libatomic1_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libatomic1_12.2.0-14+deb12u1_amd64.deb
|c4945123d66d0503ba42e2fc0585abc76d0838978c6d277b9cc37a4da25d1a34  /step/inputs/debs/libattr1_1%3a2.5.1-4.deb	pool/main/a/attr/libattr1_2.5.1-4_amd64.deb
|17d0341ca6ce604ce59c296780ac2c2a24141a769823c50669af942c025e6591  /step/inputs/debs/libaudit-common_1%3a3.0.9-1.deb	pool/main/a/audit/libaudit-common_3.0.9-1_all.deb
|30954df4b5a7c505661ba8ae5e6ea94f5805e408899fb400783bb166eb5ff306  /step/inputs/debs/libaudit1_1%3a3.0.9-1.deb	pool/main/a/audit/libaudit1_3.0.9-1_amd64.deb
|fcf55b99e5f8a78f3c8ce9b6957f1024f394cf20c196b100d308a57e43547710  /step/inputs/debs/libbinutils_2.40-2.deb	pool/main/b/binutils/libbinutils_2.40-2_amd64.deb
|5a083377f29191cafcdf0f91ec124349b4a7895b531556633a136e43c6d53943  /step/inputs/debs/libblkid1_2.38.1-5+deb12u3.deb	pool/main/u/util-linux/libblkid1_2.38.1-5+deb12u3_amd64.deb
|54149da3f44b22d523b26b692033b84503d822cc5122fed606ea69cc83ca5aeb  /step/inputs/debs/libbz2-1.0_1.0.8-5+b1.deb	pool/main/b/bzip2/libbz2-1.0_1.0.8-5+b1_amd64.deb
|e667401af91fad95f15b3ebd25d1abd8373fd18b00dc32219678413170544e84  /step/inputs/debs/libc-bin_2.36-9+deb12u14.deb	pool/main/g/glibc/libc-bin_2.36-9+deb12u14_amd64.deb
|f61d923b703401023bec2ac3d9d1c9ad7341930fbe11736f7f5ef64b489d03c4  /step/inputs/debs/libc-dev-bin_2.36-9+deb12u14.deb	pool/main/g/glibc/libc-dev-bin_2.36-9+deb12u14_amd64.deb
|ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf  /step/inputs/debs/libc6_2.36-9+deb12u14.deb	pool/main/g/glibc/libc6_2.36-9+deb12u14_amd64.deb
|0218fc2befcd784c1b0c6292c0a137ce89fad054efaa579ad083bee0f2c01aae  /step/inputs/debs/libc6-dev_2.36-9+deb12u14.deb	pool/main/g/glibc/libc6-dev_2.36-9+deb12u14_amd64.deb
|b4b54769c77e4a71c8b33aee4d600ba28a9994a1c6f60d55d4ebe7fc44882e07  /step/inputs/debs/libcap-ng0_0.8.3-1+b3.deb	pool/main/libc/libcap-ng/libcap-ng0_0.8.3-1+b3_amd64.deb
|8d684c673e7483802a5c447834b0df6fce006eb3a7109e1be412f5ad425bb24f  /step/inputs/debs/libcap2_1%3a2.66-4+deb12u3+b1.deb	pool/main/libc/libcap2/libcap2_2.66-4+deb12u3+b1_amd64.deb
|4ee6009633003f47de98333ea7f7d8835ec563ae2ac4f30251dbfee04d75d46b  /step/inputs/debs/libcc1-0_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libcc1-0_12.2.0-14+deb12u1_amd64.deb
|a2bac7015e78fbc0c504df3e441f3a22292f1d2d77f9ccda760057f3690e22f2  /step/inputs/debs/libcom-err2_1.47.0-2+b2.deb	pool/main/e/e2fsprogs/libcom-err2_1.47.0-2+b2_amd64.deb
|81ccd29130f75a9e3adabc80e61921abff42f76761e1f792fa2d1bb69af7f52f  /step/inputs/debs/libcrypt-dev_1%3a4.4.33-2.deb	pool/main/libx/libxcrypt/libcrypt-dev_4.4.33-2_amd64.deb
|f5f60a5cdfd4e4eaa9438ade5078a57741a7a78d659fcb0c701204f523e8bd29  /step/inputs/debs/libcrypt1_1%3a4.4.33-2.deb	pool/main/libx/libxcrypt/libcrypt1_4.4.33-2_amd64.deb
|ef1dfcf22de41ea90ebd3d505447ccccd999e96b85aa777a1d7d981dc3b347aa  /step/inputs/debs/libctf-nobfd0_2.40-2.deb	pool/main/b/binutils/libctf-nobfd0_2.40-2_amd64.deb
|3fb7b6f326be3fae4a87a3d33b9269bd06c1e4346a24bd737f265067e3b7427f  /step/inputs/debs/libctf0_2.40-2.deb	pool/main/b/binutils/libctf0_2.40-2_amd64.deb
|7dc5127b8dd0da80e992ba594954c005ae4359d839a24eb65d0d8129b5235c84  /step/inputs/debs/libdb5.3_5.3.28+dfsg2-1.deb	pool/main/d/db5.3/libdb5.3_5.3.28+dfsg2-1_amd64.deb
|7d2b2b700bae0ba67a13655fabba6a98da3f6ce7dee43d1ee0ac433b7ca1d947  /step/inputs/debs/libdebconfclient0_0.270.deb	pool/main/c/cdebconf/libdebconfclient0_0.270_amd64.deb
|2255e62fc22a86d2c544b8a3f516da9aee19383ad5742722ab4ce7f66a30dbc8  /step/inputs/debs/libexpat1_2.5.0-1+deb12u2.deb	pool/main/e/expat/libexpat1_2.5.0-1+deb12u2_amd64.deb
|757279c1ce56ca88ca519e4c01cffd94e8480ce936f53fe9b0d61dc1bab20394  /step/inputs/debs/libexpat1-dev_2.5.0-1+deb12u2.deb	pool/main/e/expat/libexpat1-dev_2.5.0-1+deb12u2_amd64.deb
|6d9f6c25c30efccce6d4bceaa48ea86c329a3432abb360a141f76ac223a4c34a  /step/inputs/debs/libffi8_3.4.4-1.deb	pool/main/libf/libffi/libffi8_3.4.4-1_amd64.deb
|d720259380a84f2ffc6fe516eff5cbe9c8a005138e8d6a5748747ba4b3404a82  /step/inputs/debs/libgcc-12-dev_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libgcc-12-dev_12.2.0-14+deb12u1_amd64.deb
|3016e62cb4b7cd8038822870601f5ed131befe942774d0f745622cc77d8a88f7  /step/inputs/debs/libgcc-s1_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libgcc-s1_12.2.0-14+deb12u1_amd64.deb
|e7a56552139c693904a6f9712234c05fe918353273a7cbdb5e62f423ad71bb97  /step/inputs/debs/libgcrypt20_1.10.1-3+deb12u1.deb	pool/main/libg/libgcrypt20/libgcrypt20_1.10.1-3+deb12u1_amd64.deb
|187aedef2ed763f425c1e523753b9719677633c7eede660401739e9c893482bd  /step/inputs/debs/libgmp10_2%3a6.2.1+dfsg1-1.1.deb	pool/main/g/gmp/libgmp10_6.2.1+dfsg1-1.1_amd64.deb
|30abec8c824feb1d2d7e9000a34083cccd19d139625e1b21547e3ac53b922f8e  /step/inputs/debs/libgnutls30_3.7.9-2+deb12u7.deb	pool/main/g/gnutls28/libgnutls30_3.7.9-2+deb12u7_amd64.deb
|48fec46bda7f5b1638b9e959889bfbc20491247d402d120bb152687eb48143d7  /step/inputs/debs/libgomp1_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libgomp1_12.2.0-14+deb12u1_amd64.deb
|89944ee11d7370ce6ef46fc52f094c4a6512eff8943ec4c6ebefeae6360ceada  /step/inputs/debs/libgpg-error0_1.46-1.deb	pool/main/libg/libgpg-error/libgpg-error0_1.46-1_amd64.deb
|a3c4092d84f19d13caf90f3c96eec53db8819f0e3a5247434944d71ed75fa53d  /step/inputs/debs/libgprofng0_2.40-2.deb	pool/main/b/binutils/libgprofng0_2.40-2_amd64.deb
|d8b87aea91b956b416c01a28c44ff6228315ae3b73de40acddac3dc5043607d2  /step/inputs/debs/libgssapi-krb5-2_1.20.1-2+deb12u5.deb	pool/main/k/krb5/libgssapi-krb5-2_1.20.1-2+deb12u5_amd64.deb
|ed8185c28b2cb519744a5a462dcd720d3b332c9b88a1d0002eac06dc8550cb94  /step/inputs/debs/libhogweed6_3.8.1-2.deb	pool/main/n/nettle/libhogweed6_3.8.1-2_amd64.deb
|d50716d5824083d667427817d506b45d3f59dc77e1ca52de000f3f62d4918afa  /step/inputs/debs/libidn2-0_2.3.3-1+b1.deb	pool/main/libi/libidn2/libidn2-0_2.3.3-1+b1_amd64.deb
|ebff0b2f8b220c74224197523019366e97ee4770d464bebc48e4865114e4da0e  /step/inputs/debs/libisl23_0.25-1.1.deb	pool/main/i/isl/libisl23_0.25-1.1_amd64.deb
|0ed5b35dfd1346cccbf065408ec789db6c44c1d0a16ae84533411dea09632979  /step/inputs/debs/libitm1_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libitm1_12.2.0-14+deb12u1_amd64.deb
|3fc9742f9f1a37bcb9931df6074b4d1483419ef832ad5349f47323e75fc27864  /step/inputs/debs/libjansson4_2.14-2.deb	pool/main/j/jansson/libjansson4_2.14-2_amd64.deb
|7b6e47d15c5c9cdcd456137533d8308aeba608a54cec73b28bd59bfc4b54cf06  /step/inputs/debs/libk5crypto3_1.20.1-2+deb12u5.deb	pool/main/k/krb5/libk5crypto3_1.20.1-2+deb12u5_amd64.deb
|cfac89e6a7a54ff3c6a4f843310e25efeddaa771baeae470bd98bd588c373563  /step/inputs/debs/libkeyutils1_1.6.3-2.deb	pool/main/k/keyutils/libkeyutils1_1.6.3-2_amd64.deb
|c90801be09701af221b54dd502a59cb378b7284ff31e480738baca317d2f7653  /step/inputs/debs/libkrb5-3_1.20.1-2+deb12u5.deb	pool/main/k/krb5/libkrb5-3_1.20.1-2+deb12u5_amd64.deb
|8b9c05f2d8d461a10d657b118f572af5bf8fd6c8f93dcef81e852c5ab0f428ab  /step/inputs/debs/libkrb5support0_1.20.1-2+deb12u5.deb	pool/main/k/krb5/libkrb5support0_1.20.1-2+deb12u5_amd64.deb
|d234ab339c0ba31a4fb44e2334cf5a8d15b87f2c2f9e74fadfaa877f92dcf22a  /step/inputs/debs/liblsan0_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/liblsan0_12.2.0-14+deb12u1_amd64.deb
|64cde86cef1deaf828bd60297839b59710b5cd8dc50efd4f12643caaee9389d3  /step/inputs/debs/liblz4-1_1.9.4-1.deb	pool/main/l/lz4/liblz4-1_1.9.4-1_amd64.deb
|f96d8876b53ec89d76a992bc199679b818cf518225a768954d9451fb556a4eb7  /step/inputs/debs/liblzma5_5.4.1-1+deb12u1.deb	pool/main/x/xz-utils/liblzma5_5.4.1-1+deb12u1_amd64.deb
|03539fd30c509e27101d13a56e52eda9062bdf1aefe337c07ab56def25a13eab  /step/inputs/debs/libmd0_1.0.4-2.deb	pool/main/libm/libmd/libmd0_1.0.4-2_amd64.deb
|f46e2d6b006951825adde9757790b6609d7c66c7700f9b68f3db913eaac323c3  /step/inputs/debs/libmount1_2.38.1-5+deb12u3.deb	pool/main/u/util-linux/libmount1_2.38.1-5+deb12u3_amd64.deb
|d7f79544790e44f9b0c8cb9034a18c58d37f8702a15f32539050718679e52f80  /step/inputs/debs/libmpc3_1.3.1-1.deb	pool/main/m/mpclib3/libmpc3_1.3.1-1_amd64.deb
|37b7a2b4e78890b6a074777f27b96c84f58e81558ba08410c2b6c0ca4a4ad77b  /step/inputs/debs/libmpfr6_4.2.0-1.deb	pool/main/m/mpfr4/libmpfr6_4.2.0-1_amd64.deb
|98fa7a53dc565a38b65fb70422ad08001bf5361d8fbc74255280c329996a6bec  /step/inputs/debs/libncursesw6_6.4-4.deb	pool/main/n/ncurses/libncursesw6_6.4-4_amd64.deb
|45922e6e289ffd92f0f92d2bb9159e84236ff202d552a461bf10e5335b3f0261  /step/inputs/debs/libnettle8_3.8.1-2.deb	pool/main/n/nettle/libnettle8_3.8.1-2_amd64.deb
|bb81a188c119cd7fdebae723cbc95887b6c549b2fe4fb7e268a9c8846444da99  /step/inputs/debs/libnsl-dev_1.3.0-2.deb	pool/main/libn/libnsl/libnsl-dev_1.3.0-2_amd64.deb
|c0d83437fdb016cb289436f49f28a36be44b3e8f1f2498c7e3a095f709c0d6f8  /step/inputs/debs/libnsl2_1.3.0-2.deb	pool/main/libn/libnsl/libnsl2_1.3.0-2_amd64.deb
|251330faddbf013f060fcdb41f4b0c037c8a6e89ba7c09b04bfcc4e3f0807b22  /step/inputs/debs/libp11-kit0_0.24.1-2.deb	pool/main/p/p11-kit/libp11-kit0_0.24.1-2_amd64.deb
|19fb4838168e68bc15a5606070f14b1162bb34a3899686913f5d661f1707f483  /step/inputs/debs/libpam-modules_1.5.2-6+deb12u2.deb	pool/main/p/pam/libpam-modules_1.5.2-6+deb12u2_amd64.deb
|e7b1f6c60a51398920c5da792016161a65bf1c7caaa64140dd2099176ed51280  /step/inputs/debs/libpam-modules-bin_1.5.2-6+deb12u2.deb	pool/main/p/pam/libpam-modules-bin_1.5.2-6+deb12u2_amd64.deb
|7a4f26d54c1e3ee8c68095f9d9013d13dd89a33ff78ef87330d21f21235fc278  /step/inputs/debs/libpam-runtime_1.5.2-6+deb12u2.deb	pool/main/p/pam/libpam-runtime_1.5.2-6+deb12u2_all.deb
|a06f889caf9e97ccf04dedec0905573916bc6ec3366ade2c6ef8900047fd5cc1  /step/inputs/debs/libpam0g_1.5.2-6+deb12u2.deb	pool/main/p/pam/libpam0g_1.5.2-6+deb12u2_amd64.deb
|030db54f4d76cdfe2bf0e8eb5f9efea0233ab3c7aa942d672c7b63b52dbaf935  /step/inputs/debs/libpcre2-8-0_10.42-1.deb	pool/main/p/pcre2/libpcre2-8-0_10.42-1_amd64.deb
|63845d53d5f64d2362cfb6007ec175ad1c6044cebe60a1885eff76d2ce637c35  /step/inputs/debs/libpython3.11_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/libpython3.11_3.11.2-6+deb12u8_amd64.deb
|01a8eddeb8505bb6e2c01209cda66b41fb5ebeaa64e69d0e25f7131915f1cd32  /step/inputs/debs/libpython3.11-dev_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/libpython3.11-dev_3.11.2-6+deb12u8_amd64.deb
|f3beaa03994ffedacf73c43a0843d53b062d347115d8af65bee2034552a4e6f9  /step/inputs/debs/libpython3.11-minimal_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/libpython3.11-minimal_3.11.2-6+deb12u8_amd64.deb
|890b3540dad8a1ccc0deeca025db735bcc82629a76adacbe3b50fcc06ed528ca  /step/inputs/debs/libpython3.11-stdlib_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/libpython3.11-stdlib_3.11.2-6+deb12u8_amd64.deb
|3f0c9a4c730da2fdab001cae596625438598fd2996d29d888feeb4c1cdc9011f  /step/inputs/debs/libquadmath0_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libquadmath0_12.2.0-14+deb12u1_amd64.deb
|e02ebbd3701cf468dbf98d6d917fbe0325e881f07fe8b316150c8d2a64486e66  /step/inputs/debs/libreadline8_8.2-1.3.deb	pool/main/r/readline/libreadline8_8.2-1.3_amd64.deb
|108fe67957ca7cf9ba51d801118a1b37d404bea7b6e365025cd00779e9eca38d  /step/inputs/debs/libseccomp2_2.5.4-1+deb12u1.deb	pool/main/libs/libseccomp/libseccomp2_2.5.4-1+deb12u1_amd64.deb
|2b07f5287b9105f40158b56e4d70cc1652dac56a408f3507b4ab3d061eed425f  /step/inputs/debs/libselinux1_3.4-1+b6.deb	pool/main/libs/libselinux/libselinux1_3.4-1+b6_amd64.deb
|835f806c21ae25e39053bd3057051640341b0cf08e1db9746fd82e370d82fa30  /step/inputs/debs/libsemanage-common_3.4-1.deb	pool/main/libs/libsemanage/libsemanage-common_3.4-1_all.deb
|fd36d0972866adde5a52269a309fcecd76a8e45e557dd0ecd33aa221cabc2a8c  /step/inputs/debs/libsemanage2_3.4-1+b5.deb	pool/main/libs/libsemanage/libsemanage2_3.4-1+b5_amd64.deb
|b998946bb9818a97b387a962826caae33bc7fdcb6d706b2782c0470510be6b48  /step/inputs/debs/libsepol2_3.4-2.1.deb	pool/main/libs/libsepol/libsepol2_3.4-2.1_amd64.deb
|84088c6895fc07538fc51624899f3f71835188e0d38ebc3812097ac13da523b0  /step/inputs/debs/libsmartcols1_2.38.1-5+deb12u3.deb	pool/main/u/util-linux/libsmartcols1_2.38.1-5+deb12u3_amd64.deb
|a8d78b40e9b4e422224aeebfe0e4dfc243f6acf3532490b0c05480d4283d41e2  /step/inputs/debs/libsqlite3-0_3.40.1-2+deb12u2.deb	pool/main/s/sqlite3/libsqlite3-0_3.40.1-2+deb12u2_amd64.deb
|89be24b41bff568ee6e7caf5680a3d808e80315ed92e407056ce0fa7a5bda025  /step/inputs/debs/libssl3_3.0.20-1~deb12u2.deb	pool/main/o/openssl/libssl3_3.0.20-1~deb12u2_amd64.deb
|d28def6c23630432b57cb38a4c2fd67a79d4e0484027386ca6e8d6005c3d7a73  /step/inputs/debs/libstdc++-12-dev_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libstdc++-12-dev_12.2.0-14+deb12u1_amd64.deb
|5cd3171216d4ab0fc911cfe9c35509bf2dd8f47761c43b7f6a4296701551a24d  /step/inputs/debs/libstdc++6_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libstdc++6_12.2.0-14+deb12u1_amd64.deb
|013c07514a9e4933b2d5c098018695a6aa42d085dbc483ce2c094a954c8a1b0a  /step/inputs/debs/libsystemd0_252.39-1~deb12u2.deb	pool/main/s/systemd/libsystemd0_252.39-1~deb12u2_amd64.deb
|2c27c613b69be248d09432839ea3d3382f6ee27fabaa65987aa2d884cd00afda  /step/inputs/debs/libtasn1-6_4.19.0-2+deb12u1.deb	pool/main/libt/libtasn1-6/libtasn1-6_4.19.0-2+deb12u1_amd64.deb
|072d908f38f51090ca28ca5afa3b46b2957dc61fe35094c0b851426859a49a51  /step/inputs/debs/libtinfo6_6.4-4.deb	pool/main/n/ncurses/libtinfo6_6.4-4_amd64.deb
|3e3ef129b4bf61513144236e15e1b4ec57fa5ae3dc8a72137abdbefb7a63af85  /step/inputs/debs/libtirpc-common_1.3.3+ds-1.deb	pool/main/libt/libtirpc/libtirpc-common_1.3.3+ds-1_all.deb
|03326473eed54ffa27efae19aa5d6aeb402930968f869f318445513093691d55  /step/inputs/debs/libtirpc-dev_1.3.3+ds-1.deb	pool/main/libt/libtirpc/libtirpc-dev_1.3.3+ds-1_amd64.deb
|2a46d5a5e9486da11ffeff5740931740d6deae4f92cd6098df060dc5dff1e1c7  /step/inputs/debs/libtirpc3_1.3.3+ds-1.deb	pool/main/libt/libtirpc/libtirpc3_1.3.3+ds-1_amd64.deb
|06906663d644a75a1a836382ecd80b61461129c06f02935ce408b25809f6c958  /step/inputs/debs/libtsan2_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libtsan2_12.2.0-14+deb12u1_amd64.deb
|744f52adf00ffd45d44806b1c7e802a36bd27e479c9bc8457128fde357faa530  /step/inputs/debs/libubsan1_12.2.0-14+deb12u1.deb	pool/main/g/gcc-12/libubsan1_12.2.0-14+deb12u1_amd64.deb
|6f7e08f11c4809d2e5998c775f7b423ab5ec2ce0309494b4a2615037052245e2  /step/inputs/debs/libudev1_252.39-1~deb12u2.deb	pool/main/s/systemd/libudev1_252.39-1~deb12u2_amd64.deb
|d466bbfe011d764d793c1d9d777cad9c7cf65b938e11598f27408171ad95a951  /step/inputs/debs/libunistring2_1.0-2.deb	pool/main/libu/libunistring/libunistring2_1.0-2_amd64.deb
|5fff398321da62d28a842bcbabd193d72ae21724962c029dc32b1dc6b2deaeaf  /step/inputs/debs/libuuid1_2.38.1-5+deb12u3.deb	pool/main/u/util-linux/libuuid1_2.38.1-5+deb12u3_amd64.deb
|6c19a5d18c8350744581fbd25d5d29e2b7101053e25aafa4e1ffcc2b505b2f1c  /step/inputs/debs/libxxhash0_0.8.1-1.deb	pool/main/x/xxhash/libxxhash0_0.8.1-1_amd64.deb
|6315b5ac38b724a710fb96bf1042019398cb656718b1522279a5185ed39318fa  /step/inputs/debs/libzstd1_1.5.4+dfsg2-5.deb	pool/main/libz/libzstd/libzstd1_1.5.4+dfsg2-5_amd64.deb
|8bb258735b9dffbb111da778ebdd024750878e435ffd9dfcadcb6762ede6b4cf  /step/inputs/debs/linux-libc-dev_6.1.176-1.deb	pool/main/l/linux/linux-libc-dev_6.1.176-1_amd64.deb
|f1cc45bf505a8457340dc3c36f3a01a1835aaf564d73d9d394afb8ccfb6595a0  /step/inputs/debs/login_1%3a4.13+dfsg1-1+deb12u2.deb	pool/main/s/shadow/login_4.13+dfsg1-1+deb12u2_amd64.deb
END
while IFS='	' read -r sum path; do
  file=${sum#*  }
  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
  else curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"; fi
  echo "$sum" | sha256sum --check --quiet
done </steps/list
rm /steps/list

file 644 /steps/list <<'END'
|a1a83af8cbd854af887b72ad196b1f4af58387815e21ced1000253a116a46e2a  /step/inputs/debs/make_4.3-4.1.deb	pool/main/m/make-dfsg/make_4.3-4.1_amd64.deb
|bcbc83f391854ea9d50ce2a4101aacf330de3b8b71d81a798faadba14a157f78  /step/inputs/debs/mawk_1.3.4.20200120-3.1.deb	pool/main/m/mawk/mawk_1.3.4.20200120-3.1_amd64.deb
|aaa46dcb3b39948ae2e0fdb72cfcb2f48c0b59f19785a3da8045c05eb19955dd  /step/inputs/debs/media-types_10.0.0.deb	pool/main/m/media-types/media-types_10.0.0_all.deb
|bfd1d89f833c09a28b062ee916495cf69649ca2bf529532476c7b69d75d24909  /step/inputs/debs/ncurses-base_6.4-4.deb	pool/main/n/ncurses/ncurses-base_6.4-4_all.deb
|396d6e453aee6d71b7141f0bfb333a6c08a44c64f77632bdf52894ccd123db46  /step/inputs/debs/ncurses-bin_6.4-4.deb	pool/main/n/ncurses/ncurses-bin_6.4-4_amd64.deb
|e75fe14ee81334f52efe955aaaddac07d26f117bac60488ea19ea7a8b564e62c  /step/inputs/debs/ninja-build_1.11.1-2~deb12u1.deb	pool/main/n/ninja-build/ninja-build_1.11.1-2~deb12u1_amd64.deb
|4d218561dc838de081de97f54584c4a29e77e26c7ed9fe3440d776d8e6071bf9  /step/inputs/debs/openssl_3.0.20-1~deb12u2.deb	pool/main/o/openssl/openssl_3.0.20-1~deb12u2_amd64.deb
|fb787363372903e03627e53fd483e51dfb6861047a1e02c7d5a5f27d66546d08  /step/inputs/debs/passwd_1%3a4.13+dfsg1-1+deb12u2.deb	pool/main/s/shadow/passwd_4.13+dfsg1-1+deb12u2_amd64.deb
|8ec874926e211807cde71e1b0a2311d2534ab3539dffcb2c8553633f542efc1a  /step/inputs/debs/perl-base_5.36.0-7+deb12u3.deb	pool/main/p/perl/perl-base_5.36.0-7+deb12u3_amd64.deb
|cd7b10c24281416a6acb22cd23ed7391c7dddd4a3d4d4a63d37faa786639b5de  /step/inputs/debs/python3.11_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/python3.11_3.11.2-6+deb12u8_amd64.deb
|b17df208ce4d8967269d7ef5aa7f9c8fc873f8c766a9b6382aae23a48ea71c17  /step/inputs/debs/python3.11-dev_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/python3.11-dev_3.11.2-6+deb12u8_amd64.deb
|4aba533f7cc5e7b93b7ff24482840e96813f5bcde9cce028395b65a0d799ccee  /step/inputs/debs/python3.11-minimal_3.11.2-6+deb12u8.deb	pool/main/p/python3.11/python3.11-minimal_3.11.2-6+deb12u8_amd64.deb
|69317523fe56429aa361545416ad339d138c1500e5a604856a80dd9074b4e35c  /step/inputs/debs/readline-common_8.2-1.3.deb	pool/main/r/readline/readline-common_8.2-1.3_all.deb
|32ac0692694f8a34cc90c895f4fc739680fb2ef0e2d4870a68833682bf1c81a3  /step/inputs/debs/rpcsvc-proto_1.4.3-1.deb	pool/main/r/rpcsvc-proto/rpcsvc-proto_1.4.3-1_amd64.deb
|fd557efeee8aae4619c2cb7f68aadccb804322ad4a99ab048aaae5901d253885  /step/inputs/debs/sed_4.9-1+deb12u1.deb	pool/main/s/sed/sed_4.9-1+deb12u1_amd64.deb
|11790842108768ec52432ea22e7b4f057232813b7c27ef6dfe1aba776a5cb90e  /step/inputs/debs/sysvinit-utils_3.06-4.deb	pool/main/s/sysvinit/sysvinit-utils_3.06-4_amd64.deb
|24fb92e98c2969171f81a8b589263d705f6b1670f95d121cd74c810d4605acc3  /step/inputs/debs/tar_1.34+dfsg-1.2+deb12u1.deb	pool/main/t/tar/tar_1.34+dfsg-1.2+deb12u1_amd64.deb
|908b80730d99afe6f59ed7f449827b7047ceeeaa7637c368c03e4912e0a6de99  /step/inputs/debs/usr-is-merged_37~deb12u1.deb	pool/main/u/usrmerge/usr-is-merged_37~deb12u1_all.deb
|8eb241ff24b2e1ee9c0373f4fc9bc728b85bf5966c1496154df7da01c0e42f34  /step/inputs/debs/util-linux_2.38.1-5+deb12u3.deb	pool/main/u/util-linux/util-linux_2.38.1-5+deb12u3_amd64.deb
|b097a68c68e5c47a18e82678729dd9986782cf1d439f53beafad6f6dd3e6d688  /step/inputs/debs/util-linux-extra_2.38.1-5+deb12u3.deb	pool/main/u/util-linux/util-linux-extra_2.38.1-5+deb12u3_amd64.deb
|d7dd1d1411fedf27f5e27650a6eff20ef294077b568f4c8c5e51466dc7c08ce4  /step/inputs/debs/zlib1g_1%3a1.2.13.dfsg-1.deb	pool/main/z/zlib/zlib1g_1.2.13.dfsg-1_amd64.deb
|f9ce531f60cbd5df37996af9370e0171be96902a17ec2bdbd8d62038c354094f  /step/inputs/debs/zlib1g-dev_1%3a1.2.13.dfsg-1.deb	pool/main/z/zlib/zlib1g-dev_1.2.13.dfsg-1_amd64.deb
END
while IFS='	' read -r sum path; do
  file=${sum#*  }
  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
  else curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"; fi
  echo "$sum" | sha256sum --check --quiet
done </steps/list
rm /steps/list
SCRIPT

# Unpack the distribution's packages.
FROM workshop AS unpack
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=unpack-inputs,source=/step,target=/step \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore python3 /steps/distribution.py /step/spec.json /step/inputs /out

# What `os` is made of.
FROM workshop AS os-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs
mkdir /step/inputs/unpack
file 644 /step/spec.json <<'END'
|{}
END
SCRIPT

# Install the distribution's packages.
FROM scratch AS os
COPY --from=unpack /out/root /
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=os-inputs,source=/step,target=/step \
    --mount=type=bind,from=unpack,source=/out,target=/step/inputs/unpack \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore SOURCE_DATE_EPOCH=1795219200 /bin/sh /steps/configure_distribution.sh /step/spec.json /step/inputs /

# What `package-torch` is made of.
FROM workshop AS package-torch-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs
file 644 /step/spec.json <<'END'
|{
| "on_top": true,
| "platform": "",
| "requirements": [
|  "torch==2.13.0+cpu --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
| ]
|}
END
file 644 /steps/list <<'END'
|6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b  /step/inputs/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl	cpu/torch/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
END
while IFS='	' read -r sum path; do
  file=${sum#*  }
  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
  else project=${path%/*}; project=${project##*/}; python3 /steps/fetch_package.py "${PYTORCH_INDEX%/}/${path%%/*}" "$project" "${path##*/}" "$file"; fi
  echo "$sum" | sha256sum --check --quiet
done </steps/list
rm /steps/list
SCRIPT

# Install 1 Python package.
FROM os AS package-torch
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=package-torch-inputs,source=/step,target=/step \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 /steps/wheels.py /step/spec.json /step/inputs /out

# What `python` is made of.
FROM workshop AS python-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs
file 644 /step/spec.json <<'END'
|{
| "on_top": false,
| "platform": "",
| "requirements": [
|  "filelock==4.2.11 --hash=sha256:020e229e4bb9d410fc799c07ddf45fa217cba970278f40b30751d94f309b69e2",
|  "fsspec==2026.9.0 --hash=sha256:8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f",
|  "jinja2==3.1.6 --hash=sha256:85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67",
|  "markupsafe==3.0.4 --hash=sha256:6da83a088f8ef93b2d483a8232a4dbf4d69d3d8496b568a03c56becac43e1808",
|  "mpmath==1.3.0 --hash=sha256:a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c",
|  "networkx==3.6.1 --hash=sha256:d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762",
|  "numpy==2.4.6 --hash=sha256:89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93",
|  "setuptools==84.2.1 --hash=sha256:ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2",
|  "sympy==1.14.0 --hash=sha256:e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
|  "typing-extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8"
| ]
|}
END
file 644 /steps/list <<'END'
|020e229e4bb9d410fc799c07ddf45fa217cba970278f40b30751d94f309b69e2  /step/inputs/filelock-4.2.11-py3-none-any.whl	filelock/filelock-4.2.11-py3-none-any.whl
|8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f  /step/inputs/fsspec-2026.9.0-py3-none-any.whl	fsspec/fsspec-2026.9.0-py3-none-any.whl
|85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67  /step/inputs/jinja2-3.1.6-py3-none-any.whl	jinja2/jinja2-3.1.6-py3-none-any.whl
|6da83a088f8ef93b2d483a8232a4dbf4d69d3d8496b568a03c56becac43e1808  /step/inputs/markupsafe-3.0.4-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl	markupsafe/markupsafe-3.0.4-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl
|a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c  /step/inputs/mpmath-1.3.0-py3-none-any.whl	mpmath/mpmath-1.3.0-py3-none-any.whl
|d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762  /step/inputs/networkx-3.6.1-py3-none-any.whl	networkx/networkx-3.6.1-py3-none-any.whl
|89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93  /step/inputs/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl	numpy/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl
|ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2  /step/inputs/setuptools-84.2.1-py3-none-any.whl	setuptools/setuptools-84.2.1-py3-none-any.whl
|e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5  /step/inputs/sympy-1.14.0-py3-none-any.whl	sympy/sympy-1.14.0-py3-none-any.whl
|481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8  /step/inputs/typing_extensions-4.16.0-py3-none-any.whl	typing-extensions/typing_extensions-4.16.0-py3-none-any.whl
END
while IFS='	' read -r sum path; do
  file=${sum#*  }
  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
  else project=${path%/*}; project=${project##*/}; python3 /steps/fetch_package.py "$INDEX" "$project" "${path##*/}" "$file"; fi
  echo "$sum" | sha256sum --check --quiet
done </steps/list
rm /steps/list
SCRIPT

# Install 10 Python packages.
FROM os AS python
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=python-inputs,source=/step,target=/step \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 /steps/wheels.py /step/spec.json /step/inputs /out

# What `extension-0` is made of.
FROM workshop AS extension-0-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs /step/inputs/files/fused
file 644 /step/spec.json <<'END'
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
|   "/space/src/fused/fused_bias_act_cpu.cpp"
|  ],
|  "with_cuda": false,
|  "with_pytorch_error_handling": true
| },
| "commit": "0000000000000000000000000000000000000000",
| "env": [],
| "files": {
|  "fused/fused_bias_act.cpp": "730188a60651797a76a0d31794634974eb66926b68dd0f43dbf23adeda9fa268",
|  "fused/fused_bias_act_cpu.cpp": "fb5686503478635701958c7ad954567c9ce43c9072914756011afb94df641d69",
|  "fused/fused_bias_act_kernel.h": "ab18d5dee37bac0d6c8f4ec2ab9f54f3d367323ec2398676c9270d64bb518fa9"
| },
| "form": "load",
| "gpus": [],
| "key": "6fb0d220e8b1404ded3e3b82060c0508329272b959aee763e607932980e6fe28",
| "name": "fused",
| "patch": "",
| "path": "",
| "strip": false
|}
END
file 644 /steps/list <<'END'
|730188a60651797a76a0d31794634974eb66926b68dd0f43dbf23adeda9fa268  /step/inputs/files/fused/fused_bias_act.cpp	fused/fused_bias_act.cpp
|fb5686503478635701958c7ad954567c9ce43c9072914756011afb94df641d69  /step/inputs/files/fused/fused_bias_act_cpu.cpp	fused/fused_bias_act_cpu.cpp
|ab18d5dee37bac0d6c8f4ec2ab9f54f3d367323ec2398676c9270d64bb518fa9  /step/inputs/files/fused/fused_bias_act_kernel.h	fused/fused_bias_act_kernel.h
END
while IFS='	' read -r sum path; do
  file=${sum#*  }
  cp "/context/$path" "$file"
  echo "$sum" | sha256sum --check --quiet
done </steps/list
rm /steps/list
SCRIPT

# Compile the extension `fused`.
FROM os AS extension-0
COPY --link --from=package-torch /out /
COPY --link --from=python /out /
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=extension-0-inputs,source=/step,target=/step \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /opt/env/bin/python /steps/extension.py /step/spec.json /step/inputs /out

# What `extensions` is made of.
FROM workshop AS extensions-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs
mkdir /step/inputs/extension-0
file 644 /step/spec.json <<'END'
|{
| "gpus": [],
| "parts": [
|  [
|   "extension-0",
|   "load"
|  ]
| ]
|}
END
SCRIPT

# Join the extensions.
FROM os AS extensions
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=extensions-inputs,source=/step,target=/step \
    --mount=type=bind,from=extension-0,source=/out,target=/step/inputs/extension-0 \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 /steps/extensions.py /step/spec.json /step/inputs /out

# What `start` is made of.
FROM workshop AS start-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs
file 644 /step/spec.json <<'END'
|{
| "folders": [],
| "links": {}
|}
END

file 644 /step/inputs/opt/env/lib/python3.11/site-packages/first.pth <<'END'
|import first
END

file 644 /step/inputs/opt/env/lib/python3.11/site-packages/first.py <<'END'
END
SCRIPT

# Write the modules that each Python runs first.
FROM os AS start
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=start-inputs,source=/step,target=/step \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 /steps/write_files.py /step/spec.json /step/inputs /out

# What `runtime` is made of.
FROM workshop AS runtime-inputs
ARG DEBIAN_MIRROR
ARG DEBIAN_SECURITY
ARG UBUNTU_MIRROR
ARG CUDA_REDIST
ARG PYTHON_MIRROR
ARG INDEX
ARG PYTORCH_INDEX
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts --mount=type=bind,target=/context <<'SCRIPT'
#!/bin/bash
set -euo pipefail
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}
for ca in /run/secrets/ca /artifacts/certificates.pem; do
  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi
done
mkdir -p /step/inputs
file 644 /step/spec.json <<'END'
|{
| "folders": [
|  ".singularity.d/libs"
| ],
| "links": {
|  "environment": ".singularity.d/env/90-environment.sh",
|  "singularity": ".singularity.d/runscript"
| }
|}
END

file 644 /step/inputs/.singularity.d/env/10-docker2singularity.sh <<'END'
|#!/bin/sh
|export PATH=/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
|export PYTORCH_VERSION=2.13.0
END

file 644 /step/inputs/.singularity.d/env/90-environment.sh <<'END'
|#!/bin/sh
|# Values that a user may change do not belong here: they would beat the user's own.
END

file 644 /step/inputs/.singularity.d/env/99-base.sh <<'END'
|#!/bin/sh
|# The driver's libraries of `--nv`. Apptainer sets what `--env` and APPTAINERENV_X say right after this file.
|export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
END

file 644 /step/inputs/.singularity.d/runscript <<'END'
|#!/bin/sh
|if [ "$#" -eq 0 ]; then set -- /bin/bash; fi
|exec /opt/envbuilder/start "$@"
END

file 644 /step/inputs/.singularity.d/labels.json <<'END'
|{
| "a.label": "its value"
|}
END

file 644 /step/inputs/.singularity.d/startscript <<'END'
|#!/bin/sh
END

file 644 /step/inputs/etc/profile.d/envbuilder.sh <<'END'
|# Login shells read this file: /etc/profile sets another PATH, and `su -` and sshd drop the rest.
|case :$PATH: in *:/opt/env/bin:*) ;; *) export PATH=/opt/env/bin:"$PATH" ;; esac
|[ -n "${PYTORCH_VERSION+set}" ] || export PYTORCH_VERSION=2.13.0
END

file 644 /step/inputs/opt/envbuilder/start <<'END'
|#!/bin/sh
|exec "$@"
END
SCRIPT

# Write what a container runtime reads at start.
FROM workshop AS runtime
WORKDIR /out
RUN --network=none \
    --mount=type=bind,from=workshop,source=/steps,target=/steps \
    --mount=type=bind,from=runtime-inputs,source=/step,target=/step \
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore python3 /steps/write_files.py /step/spec.json /step/inputs /out

# The image.
FROM scratch
COPY --link --from=os / /
COPY --link --from=package-torch /out /
COPY --link --from=python /out /
COPY --link --from=extensions /out /
COPY --link --from=start /out /
COPY --link --from=runtime /out /
ENV PATH="/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV PYTORCH_VERSION="2.13.0"
LABEL a.label="its value"
LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.11/site-packages/torch/include\",\"/opt/env/lib/python3.11/site-packages/torch/include/torch/csrc/api/include\",\"/usr/include/python3.11\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
ENTRYPOINT ["/opt/envbuilder/start"]
CMD ["/bin/bash"]
