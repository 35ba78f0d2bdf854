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
if ! { command -v curl >/dev/null && command -v git >/dev/null && python3 -m pip --version >/dev/null 2>&1; }; then
  apt-get update && apt-get install --yes --no-install-recommends ca-certificates curl git python3-pip
fi
offline=
for file in /artifacts/uv-*.whl; do [ ! -e "$file" ] || offline=--no-index; done
mkdir /steps
PIP_ROOT_USER_ACTION=ignore python3 -m pip download --quiet --disable-pip-version-check --no-deps --find-links /artifacts $offline --dest /uv uv==1.2.3
python3 -m zipfile --extract /uv/uv-*.whl /uv
mv /uv/uv-*.data/scripts/uv /steps/uv && chmod 755 /steps/uv && rm -r /uv

file 644 /steps/write_files.py <<'END'
|the program write_files.py
END
SCRIPT

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
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore SOURCE_DATE_EPOCH=1795219200 /usr/bin/python3.11 /steps/write_files.py /step/spec.json /step/inputs /out

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
    env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore SOURCE_DATE_EPOCH=1795219200 python3 /steps/write_files.py /step/spec.json /step/inputs /out

# The image.
FROM scratch
COPY --link --from=start /out /
COPY --link --from=runtime /out /
ENV PATH="/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV PYTORCH_VERSION="2.13.0"
LABEL a.label="its value"
LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.11/site-packages/torch/include\",\"/opt/env/lib/python3.11/site-packages/torch/include/torch/csrc/api/include\",\"/usr/include/python3.11\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
ENTRYPOINT ["/opt/envbuilder/start"]
CMD ["/bin/bash"]
